"""The tables of states: what leads where, what is refused, and the page that is drawn from them."""

import pytest

from kit.state_page import PAGE, page
from penstock.adapters.amqp.states import (
    CHANNEL_TRANSITIONS,
    CONNECTION_TRANSITIONS,
    DISCARDING,
    ChannelInput,
    ChannelState,
    ConnectionInput,
    ConnectionState,
    next_channel_state,
    next_connection_state,
)
from penstock.wire.amqp.codes import AmqpError, ReplyCode


def reachable(transitions, start):
    found, new = set(), {start}
    while new:
        found |= new
        new = {to for (state, _), to in transitions.items() if state in found} - found
    return found


def test_the_page_of_the_states_is_in_step_with_the_tables():
    assert PAGE.read_text("utf-8") == page(), "run: python -m kit.state_page"


def test_every_state_can_be_reached():
    found = reachable(CONNECTION_TRANSITIONS, ConnectionState.AWAIT_HEADER)
    assert found == set(ConnectionState)
    assert reachable(CHANNEL_TRANSITIONS, ChannelState.FREE) == set(ChannelState)


def test_nothing_comes_after_the_end_of_a_connection():
    assert not [state for state, _ in CONNECTION_TRANSITIONS if state is ConnectionState.CLOSED]


def test_a_handshake_goes_step_by_step():
    state = ConnectionState.AWAIT_HEADER
    steps = (
        ConnectionInput.HEADER,
        ConnectionInput.START_OK,
        ConnectionInput.TUNE_OK,
        ConnectionInput.OPEN,
    )
    for received in steps:
        state = next_connection_state(state, received)
    assert state is ConnectionState.RUNNING


@pytest.mark.parametrize(
    ("state", "received", "text"),
    [
        (ConnectionState.AWAIT_START_OK, ConnectionInput.TUNE_OK, "awaited is start-ok"),
        (ConnectionState.AWAIT_TUNE_OK, ConnectionInput.START_OK, "awaited is tune-ok"),
        (ConnectionState.AWAIT_OPEN, None, "awaited is open"),
        (ConnectionState.RUNNING, ConnectionInput.OPEN, "in connection state running"),
    ],
)
def test_a_method_out_of_turn_is_a_channel_error_of_the_connection(state, received, text):
    with pytest.raises(AmqpError) as caught:
        next_connection_state(state, received)
    assert caught.value.code is ReplyCode.CHANNEL_ERROR
    assert text in caught.value.reply_text


def test_a_free_number_hears_open_only_and_an_open_one_no_second_time():
    for state, received in (
        (ChannelState.FREE, None),
        (ChannelState.FREE, ChannelInput.CLOSE),
        (ChannelState.OPEN, ChannelInput.OPEN),
    ):
        with pytest.raises(AmqpError) as caught:
            next_channel_state(state, received)
        assert caught.value.code is ReplyCode.CHANNEL_ERROR


def test_a_channel_that_ends_throws_away_what_is_not_about_its_end():
    for state in DISCARDING:
        assert next_channel_state(state, None) is state
        assert next_channel_state(state, ChannelInput.OPEN) is state
