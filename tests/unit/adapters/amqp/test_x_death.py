"""x-death: what a dead letter tells of its lives."""

import pytest

from penstock.adapters.amqp.x_death import DEATHS_MAX, DeathNote, deaths_of, is_cycle, with_death
from penstock.wire.amqp.table import Timestamp, decode_table, encode_table, split_table


def note(reason="expired", queue="q", **changes):
    values = {"time_s": 1_700_000_000, "exchange": "e", "routing_keys": ("k",)}
    return DeathNote(reason, queue, **{**values, **changes})


def read(headers):
    return decode_table(headers)[0]


def test_the_first_death_is_told_with_every_field_in_rabbitmqs_types():
    headers = with_death(None, note(routing_keys=("k", "cc"), expiration="60000"))
    (entry,) = read(headers)["x-death"]
    assert entry == {
        "count": 1,
        "reason": "expired",
        "queue": "q",
        "time": 1_700_000_000,
        "exchange": "e",
        "routing-keys": ["k", "cc"],
        "original-expiration": "60000",
    }
    assert isinstance(entry["time"], Timestamp)
    assert b"\x05countl" in headers, "a long, as RabbitMQ writes it"


def test_without_an_expiration_there_is_no_original_one():
    assert "original-expiration" not in deaths_of(with_death(None, note()))[0]


def test_a_death_of_the_same_queue_and_reason_is_counted_and_keeps_its_first_time():
    headers = with_death(None, note())
    headers = with_death(headers, note(time_s=1_800_000_000))
    (entry,) = deaths_of(headers)
    assert (entry["count"], entry["time"]) == (2, 1_700_000_000)


def test_the_latest_death_is_in_front_also_when_it_is_counted_in_an_older_entry():
    headers = None
    for queue in ("a", "b", "a"):
        headers = with_death(headers, note(queue=queue))
    assert [(each["queue"], each["count"]) for each in deaths_of(headers)] == [("a", 2), ("b", 1)]


def test_another_reason_in_the_same_queue_is_another_entry():
    headers = with_death(with_death(None, note("expired")), note("rejected"))
    assert [each["reason"] for each in deaths_of(headers)] == ["rejected", "expired"]


def test_the_first_death_stays_and_the_last_one_changes():
    headers = with_death(None, note("expired", "a", exchange="x"))
    headers = read(with_death(headers, note("maxlen", "b", exchange="y")))
    first = [headers[f"x-first-death-{name}"] for name in ("reason", "queue", "exchange")]
    last = [headers[f"x-last-death-{name}"] for name in ("reason", "queue", "exchange")]
    assert first == ["expired", "a", "x"]
    assert last == ["maxlen", "b", "y"]


def test_other_headers_stay_byte_for_byte_and_in_order():
    own = encode_table({"a": 1, "b": [1.5, {"c": None}], "z": "\udcff"})
    headers = with_death(own, note())
    assert split_table(headers)[:3] == split_table(own)


def test_cc_goes_only_when_asked():
    own = encode_table({"CC": ["x"]})
    assert "CC" in read(with_death(own, note()))
    assert "CC" not in read(with_death(own, note(), drops_cc=True))


@pytest.mark.parametrize("value", ["text", 7, {"a": 1}])
def test_an_x_death_that_is_no_array_is_begun_anew(value):
    headers = with_death(encode_table({"x-death": value}), note())
    assert [each["queue"] for each in deaths_of(headers)] == ["q"]


def test_entries_that_are_no_tables_are_passed_over_and_kept():
    headers = with_death(encode_table({"x-death": ["odd", {"queue": "q"}]}), note())
    assert [type(each) for each in deaths_of(headers)] == [dict, str, dict]
    assert not is_cycle(["odd", 7], "q")


def test_a_wanderer_forgets_its_oldest_deaths():
    headers = None
    for number in range(DEATHS_MAX + 5):
        headers = with_death(headers, note(queue=f"q{number}"))
    deaths = deaths_of(headers)
    assert len(deaths) == DEATHS_MAX
    assert deaths[0]["queue"] == f"q{DEATHS_MAX + 4}"


def deaths(*pairs):
    return [{"queue": queue, "reason": reason} for queue, reason in pairs]


def test_coming_back_to_a_queue_without_a_rejection_is_a_cycle():
    assert is_cycle(deaths(("b", "expired"), ("a", "maxlen")), "a")
    assert is_cycle(deaths(("a", "expired")), "a")
    assert not is_cycle(deaths(("b", "expired")), "a")
    assert not is_cycle([], "a")


def test_a_rejection_on_the_way_or_there_makes_it_no_cycle():
    assert not is_cycle(deaths(("b", "rejected"), ("a", "expired")), "a")
    assert not is_cycle(deaths(("b", "expired"), ("a", "rejected")), "a")
    assert is_cycle(deaths(("a", "expired"), ("b", "rejected")), "a"), "older than the last visit"
