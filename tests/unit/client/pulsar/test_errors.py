"""Errors say what, which and what to do, and whether another try may help."""

import pytest

from penstock.client.failures import ClientError
from penstock.client.pulsar.errors import (
    InvalidUse,
    NothingReceived,
    NotPulsar,
    Refused,
    TimedOut,
    Unreachable,
    is_worth_another_try,
)
from penstock.wire.pulsar.frames import ServerError

TOO_LONG = "metadata has a max size of 1024 bytes"
NO_LISTENER = "the broker do not have test listener"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Refused(5, "taken", "consumer c"), ["consumer c", "ConsumerBusy (5)", "taken", "close"]),
        (Refused(5, "It is taken.", "consumer c"), ["It is taken; close"]),
        (
            Refused(25, "Topic has producers", "producer p"),
            ["Topic has producers; another", "access"],
        ),
        (Refused(99, "", "x"), ["code 99", "no reason"]),
        (Refused(22, "no", "x"), ["NotAllowedError", "no; check what"]),
        (Refused(1, "no", "x"), ["MetadataError", "no; check names"]),
        (Refused(17, "no", "x"), ["InvalidTopicName", "no; use 'tenant/namespace/orders'"]),
        (Refused(1, TOO_LONG, "x"), ["1024 bytes; shorten its properties"]),
        (Refused(6, NO_LISTENER, "x"), ["listener; check listener_name"]),
        (NothingReceived("consumer c", 5, "it waits"), ["consumer c", "5 ms", "it waits"]),
        (NotPulsar("h:1", "AMQP"), ["h:1", "AMQP"]),
    ],
)
def test_the_text_names_what_matters(error, words):
    assert isinstance(error, ClientError)
    assert all(word in str(error) for word in words)


def test_nothing_received_has_what_every_time_out_has():
    error = NothingReceived("consumer c", 5, "it waits")
    assert (error.timeout_ms, error.address) == (5, "consumer c")


def test_what_may_pass_is_tried_again_and_what_cannot_is_not():
    again = [Unreachable("h", "x"), TimedOut("h", 1), Refused(ServerError.ServiceNotReady, "", "x")]
    again.append(Refused(ServerError.MetadataError, "the store is away", "x"))
    never = [
        NotPulsar("h", "x"),
        InvalidUse("x"),
        Refused(ServerError.MetadataError, TOO_LONG, "x"),
        Refused(ServerError.ServiceNotReady, NO_LISTENER, "x"),
        *[
            Refused(code, "", "x")
            for code in (
                ServerError.AuthorizationError,
                ServerError.ConsumerBusy,
                ServerError.TopicNotFound,
                ServerError.ProducerFenced,
                ServerError.IncompatibleSchema,
            )
        ],
    ]
    assert all(map(is_worth_another_try, again))
    assert not any(map(is_worth_another_try, never))
