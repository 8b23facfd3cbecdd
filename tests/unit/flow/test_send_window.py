"""The send window of a producing client (F16)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.send_window import SendWindow


def test_permits_are_had_up_to_the_number_and_the_next_one_waits():
    window = SendWindow(2, 1000)
    assert [window.take(1), window.take(1), window.take(1)] == [True, True, False]
    assert (window.messages, window.bytes) == (2, 2)


def test_permits_are_had_up_to_the_bytes():
    window = SendWindow(10, 100)
    assert window.take(60)
    assert not window.take(41)
    assert window.take(40)


def test_an_answer_hands_its_permit_to_the_first_who_waits():
    window = SendWindow(1, 100)
    window.take(5)
    window.wait("a", 5, 10)
    window.wait("b", 5, 20)
    assert window.give(5) == ["a"]
    assert (window.waiting, window.waits_since_ms, window.messages) == (1, 20, 1)


def test_nobody_overtakes_one_who_waits_for_bytes():
    window = SendWindow(10, 100)
    window.take(90)
    window.wait("large", 50, 0)
    assert not window.take(1)
    assert window.full == "bytes"


def test_one_answer_may_make_room_for_several():
    window = SendWindow(10, 100)
    window.take(100)
    for name in "abc":
        window.wait(name, 40, 0)
    assert window.give(100) == ["a", "b"]


def test_a_message_larger_than_the_window_goes_alone():
    window = SendWindow(10, 100)
    assert window.take(500)
    window.wait("next", 500, 0)
    assert window.give(500) == ["next"]


def test_one_who_leaves_lets_smaller_ones_behind_it_in():
    window = SendWindow(10, 100)
    window.take(60)
    window.wait("large", 80, 0)
    window.wait("small", 10, 0)
    assert window.forget(["large"]) == ["small"]
    assert window.forget(["nobody"]) == []


def test_full_names_the_number_when_that_is_reached():
    window = SendWindow(1, 100)
    assert window.full == ""
    window.take(1)
    window.wait("a", 1, 0)
    assert window.full == "messages"


def test_all_who_wait_are_forgotten_when_the_producer_stops():
    window = SendWindow(1, 100)
    window.take(1)
    window.wait("a", 1, 0)
    assert window.forget_all() == ["a"]
    assert (window.waiting, window.waits_since_ms) == (0, None)


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        SendWindow(0, 1)


@given(
    st.lists(st.tuples(st.sampled_from(["send", "answer", "leave"]), st.integers(1, 150))),
    st.integers(1, 5),
)
def test_ceilings_hold_and_permits_are_handed_out_in_order(steps, messages_max):
    window = SendWindow(messages_max, 100)
    sizes, in_flight, waiting, admitted = {}, [], [], []

    def enter(names):
        for name in names:
            assert name == waiting.pop(0)
            in_flight.append(name)
            admitted.append(name)

    for number, (step, size) in enumerate(steps):
        if step == "send":
            sizes[number] = size
            if window.take(size):
                assert not waiting
                in_flight.append(number)
            else:
                window.wait(number, size, number)
                waiting.append(number)
        elif step == "answer" and in_flight:
            enter(window.give(sizes[in_flight.pop(size % len(in_flight))]))
        elif step == "leave" and waiting:
            gone = waiting.pop(size % len(waiting))
            enter(window.forget([gone]))
        assert window.messages == len(in_flight) <= messages_max
        assert window.bytes == sum(sizes[each] for each in in_flight)
        assert window.bytes <= 100 or len(in_flight) == 1
        # No lost wake-up: whoever waits first does not fit.
        if waiting:
            is_full = window.messages == messages_max
            assert in_flight
            assert is_full or window.bytes + sizes[waiting[0]] > 100
