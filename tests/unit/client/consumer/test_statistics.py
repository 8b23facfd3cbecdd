"""Rates, durations and result kinds of a consumer."""

from penstock.client.consumer.results import ConsumeResult, Finished, ResultKind
from penstock.client.consumer.statistics import ConsumerStatistics, Window


def call(kind=ResultKind.SUCCESS, messages=1, spent_ms=2.0, answer=None, error=None):
    return Finished([None] * messages, answer, error, kind, spent_ms)


def test_a_window_forgets_after_a_minute_and_keeps_the_total():
    window = Window()
    window.add(10, 5.0, 1_000)
    window.add(20, 25.0, 2_000)
    assert window.per_second(2_500) == 15
    assert window.average(2_500) == 1.0
    assert window.recent(61_500) == 20
    assert window.recent(62_500) == 0
    assert window.per_second(62_500) == 0.0
    assert window.average(62_500) == 0.0
    assert (window.count, window.total) == (30, 30.0)


def test_one_second_is_one_slice():
    window = Window()
    for at_ms in range(0, 1000, 10):
        window.add(1, 0.0, at_ms)
    assert window.per_second(999) == 100


def test_results_are_counted_by_kind_and_message():
    statistics = ConsumerStatistics()
    later = {"answer": ConsumeResult.LATER}
    statistics.topic("t").finished(
        [
            call(messages=3),
            call(ResultKind.EXCEPTION, error=ValueError()),
            call(ResultKind.LATER, 2, **later),
            call(ResultKind.TIME_OUT, spent_ms=6.0),
        ],
        1_000,
    )
    figures = statistics.figures(1_000)["t"]
    assert figures.results == {
        ResultKind.SUCCESS: 3,
        ResultKind.EXCEPTION: 1,
        ResultKind.LATER: 2,
        ResultKind.TIME_OUT: 1,
    }
    assert figures.consumed_per_s == 4
    assert (figures.failed_per_s, figures.failed_recently) == (3, 3)
    assert figures.consume_ms == 3.0


def test_pulls_have_a_rate_and_a_mean_time():
    statistics = ConsumerStatistics()
    statistics.topic("t").pulled(32, 10.0, 1_000)
    statistics.topic("t").pulled(8, 20.0, 1_500)
    figures = statistics.figures(1_999)["t"]
    assert (figures.pulled, figures.pulled_per_s, figures.pull_ms) == (40, 40, 15.0)


def test_a_forgotten_topic_has_no_figures():
    statistics = ConsumerStatistics()
    statistics.topic("t").pulled(1, 1.0, 0)
    statistics.forget("t")
    assert statistics.figures(0) == {}
