"""Law: x-death is what a list of (queue, reason, count) moved to the front would be."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.adapters.amqp.topology.dead_letter import XDeath, deaths_of, is_cycle, with_death
from penstock.wire.amqp.table import decode_table, encode_table

REASONS = ("rejected", "expired", "maxlen", "delivery_limit")
LIVES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(REASONS)), max_size=20)
OWN = st.dictionaries(
    st.sampled_from(("a", "key", "x-other", "CC")), st.integers(-9, 9) | st.text(max_size=5)
)


def note(life, time_s):
    queue, reason = life
    return XDeath(reason, queue, time_s, f"of {queue}", (queue,))


@given(OWN, LIVES)
def test_counts_order_and_first_and_last_are_those_of_the_model(own, lives):
    headers = encode_table(own) if own else None
    model = []
    for time_s, life in enumerate(lives):
        headers = with_death(headers, note(life, time_s))
        known = [entry for entry in model if entry[0] == life]
        count, first_s = (known[0][1] + 1, known[0][2]) if known else (1, time_s)
        model = [(life, count, first_s)] + [entry for entry in model if entry[0] != life]
    told = [
        ((each["queue"], each["reason"]), each["count"], each["time"])
        for each in deaths_of(headers)
    ]
    assert told == model
    if lives:
        found = decode_table(headers)[0]
        assert {name: found[name] for name in own} == own
        for word, life in (("first", lives[0]), ("last", lives[-1])):
            place = (found[f"x-{word}-death-queue"], found[f"x-{word}-death-reason"])
            assert place == life


@given(LIVES, st.sampled_from("abcde"))
def test_a_cycle_is_a_way_back_on_which_nobody_rejected(lives, queue):
    headers = None
    for time_s, life in enumerate(lives):
        headers = with_death(headers, note(life, time_s))
    latest = list(dict.fromkeys(reversed(lives)))
    places = [place for place, _ in latest]
    expected = queue in places and all(
        reason != "rejected" for _, reason in latest[: places.index(queue) + 1]
    )
    assert is_cycle(deaths_of(headers), queue) == expected
