"""The waits of failed popped messages, against RocketMQ's table."""

import pytest

from penstock.client.consumer.pop_delays import (
    AGE_MS_MAX,
    delay_ms,
    retry_delay_ms,
    suspend_ms,
)

TABLE_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


def test_the_wait_grows_with_each_delivery_and_ends_at_two_hours():
    assert [delay_ms(times) // 1000 for times in range(18)] == [*TABLE_S, 7200, 7200]


def test_a_level_the_listener_chose_counts_instead_of_the_deliveries():
    assert delay_ms(9, level=2) == 60_000
    assert delay_ms(9, level=99) == 7_200_000


def test_below_sixteen_deliveries_age_does_not_matter():
    assert retry_delay_ms(15, AGE_MS_MAX * 10) == 7_200_000
    assert retry_delay_ms(3, 0, level=1) == 30_000


@pytest.mark.parametrize(
    ("age_s", "wait_s"),
    [(0, 10), (9, 10), (10, 30), (59, 60), (60, 120), (3599, 3600), (3600, 7200), (14_400, 7200)],
)
def test_from_sixteen_deliveries_on_the_age_chooses_the_wait(age_s, wait_s):
    assert retry_delay_ms(16, age_s * 1000) == wait_s * 1000


def test_what_is_older_than_four_hours_after_sixteen_deliveries_is_given_up():
    assert retry_delay_ms(16, 4 * 3_600_000) is not None
    assert retry_delay_ms(16, 4 * 3_600_000 + 1) is None


def test_an_ordered_queue_stands_still_between_ten_milliseconds_and_thirty_seconds():
    assert [suspend_ms(each) for each in (-1, 1000, 99_999)] == [10, 1000, 30_000]
