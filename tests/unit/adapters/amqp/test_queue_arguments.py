"""What x-arguments mean, and in which words they are refused."""

import pytest

from penstock.adapters.amqp.queue_arguments import read_arguments
from penstock.engine.host import Mode
from penstock.engine.topic import AT_ONCE_MS, NONE_MAX, Overflow, TopicPolicy
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import Timestamp

Q = "queue 'q' in vhost '/'"


def refusal(arguments):
    with pytest.raises(AmqpError) as caught:
        read_arguments(Q, arguments)
    assert caught.value.code is ReplyCode.PRECONDITION_FAILED
    return str(caught.value).removeprefix("PRECONDITION_FAILED - ")


def test_no_arguments_are_a_plain_classic_queue():
    read = read_arguments(Q, {})
    assert (read.kind, read.policy, read.mode) == ("classic", TopicPolicy(), Mode.SHARED)
    assert read.dead_letter_exchange is None


def test_every_limit_has_its_place_in_the_policy():
    read = read_arguments(
        Q,
        {
            "x-message-ttl": 60_000,
            "x-expires": 1000,
            "x-max-length": 5,
            "x-max-length-bytes": 500,
            "x-overflow": "reject-publish",
            "x-max-priority": 10,
        },
    )
    assert read.policy == TopicPolicy(
        message_ttl_ms=60_000,
        expires_ms=1000,
        length_max=5,
        bytes_max=500,
        overflow=Overflow.REJECT,
        max_priority=10,
    )


@pytest.mark.parametrize(
    ("word", "overflow"),
    [
        ("drop-head", Overflow.DROP_HEAD),
        ("reject-publish", Overflow.REJECT),
        ("reject-publish-dlx", Overflow.REJECT_DEAD_LETTER),
        ("hold", Overflow.HOLD),
    ],
)
def test_all_overflow_policies(word, overflow):
    assert read_arguments(Q, {"x-overflow": word}).policy.overflow is overflow


def test_limits_of_zero_are_limits():
    policy = read_arguments(
        Q, {"x-message-ttl": 0, "x-max-length": 0, "x-max-length-bytes": 0}
    ).policy
    assert policy.message_ttl_ms == AT_ONCE_MS
    assert (policy.length_max, policy.bytes_max) == (NONE_MAX, NONE_MAX)


def test_a_priority_of_zero_is_none():
    assert read_arguments(Q, {"x-max-priority": 0}).policy.max_priority == 0


def test_single_active_consumer_is_a_mode():
    assert read_arguments(Q, {"x-single-active-consumer": True}).mode is Mode.SINGLE_ACTIVE
    assert read_arguments(Q, {"x-single-active-consumer": False}).mode is Mode.SHARED


def test_dead_letters_may_go_to_the_default_exchange():
    read = read_arguments(Q, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    assert (read.dead_letter_exchange, read.dead_letter_routing_key) == ("", "dead")


def test_a_quorum_queue_has_a_delivery_limit():
    read = read_arguments(Q, {"x-queue-type": "quorum", "x-delivery-limit": 3})
    assert (read.kind, read.delivery_limit) == ("quorum", 3)
    assert read_arguments(Q, {"x-queue-type": "quorum"}).delivery_limit == 0
    read = read_arguments(Q, {"x-queue-type": "quorum", "x-delivery-limit": 0})
    assert read.delivery_limit == NONE_MAX


def test_what_has_no_meaning_here_is_accepted():
    read_arguments(
        Q,
        {
            "x-queue-mode": "lazy",
            "x-queue-version": 2,
            "x-queue-type": "classic",
            "x-queue-master-locator": "min-masters",
            "x-queue-leader-locator": "balanced",
            "x-foo": {"any": ["thing"]},
            "no-prefix": 1,
        },
    )


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -1, "{value_negative,-1}"),
        ("x-expires", 4_294_967_296, "{value_too_big,4294967296}"),
        ("x-expires", "1000", '"expected integer, got longstr"'),
        ("x-message-ttl", -5, "{value_negative,-5}"),
        ("x-message-ttl", 1.5, '"expected integer, got double"'),
        ("x-message-ttl", True, '"expected integer, got bool"'),
        ("x-message-ttl", Timestamp(5), '"expected integer, got timestamp"'),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length", None, '"expected integer, got void"'),
        ("x-max-length-bytes", [], '"expected integer, got array"'),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-max-priority", -1, "{value_negative,-1}"),
        ("x-overflow", "drop-tail", "invalid_overflow"),
        ("x-overflow", 1, "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-single-active-consumer", "yes", "{unacceptable_type,longstr}"),
        ("x-queue-mode", "eager", "\"unsupported queue mode 'eager'\""),
        ("x-queue-version", 3, "\"unsupported queue version '3'\""),
        ("x-queue-type", "magic", "\"unsupported queue type 'magic'\""),
        ("x-queue-type", 1 << 40, "{unacceptable_type,long}"),
    ],
)
def test_bad_values_are_refused_in_rabbitmqs_words(name, value, problem):
    assert refusal({name: value}) == f"invalid arg '{name}' for {Q}: {problem}"


def test_a_dead_letter_exchange_is_text():
    text = f"invalid type 'signedint' for arg 'x-dead-letter-exchange' in {Q}"
    assert refusal({"x-dead-letter-exchange": 7}) == text


def test_streams_are_refused_saying_so():
    assert "streams are not built" in refusal({"x-queue-type": "stream"})


@pytest.mark.parametrize(
    ("arguments", "name", "module"),
    [
        ({"x-delivery-limit": 3}, "x-delivery-limit", "rabbit_classic_queue"),
        ({"x-max-age": "1D"}, "x-max-age", "rabbit_classic_queue"),
        ({"x-queue-type": "quorum", "x-max-priority": 3}, "x-max-priority", "rabbit_quorum_queue"),
        ({"x-queue-type": "quorum", "x-queue-mode": "lazy"}, "x-queue-mode", "rabbit_quorum_queue"),
    ],
)
def test_arguments_of_another_type_of_queue_are_refused(arguments, name, module):
    assert refusal(arguments) == f"invalid arg '{name}' for {Q} of queue type {module}"
