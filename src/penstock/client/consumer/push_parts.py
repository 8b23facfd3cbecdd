"""The parts of a push consumer, chosen and put together by its options.

    store      remote (clustering), a local file (broadcasting), or the user's own
    listening  threads for a function, an event loop for a coroutine function
    service    concurrent or ordered
    sharing    divided among the members, everything (broadcasting), or by the broker (pop)

Not here: what the parts do, and their life (``push_member.py``).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from penstock.client.consumer.assigned import AssignedQueue, ConsumeService
from penstock.client.consumer.caller import Caller, Listener, is_coroutine_listener
from penstock.client.consumer.concurrent import ConcurrentService
from penstock.client.consumer.consume_from import ConsumeFrom
from penstock.client.consumer.hooks import Hooks
from penstock.client.consumer.listening import CoroutineListening, Listening, ThreadListening
from penstock.client.consumer.locks import BrokerLocks, LockTerms
from penstock.client.consumer.offsets.local_file import LocalFileOffsets, offsets_file
from penstock.client.consumer.offsets.own import OwnOffsets
from penstock.client.consumer.offsets.remote import RemoteOffsets
from penstock.client.consumer.offsets.table import OffsetStore
from penstock.client.consumer.ordered import OrderedService, OrderedTerms
from penstock.client.consumer.plain_sender import PlainSender
from penstock.client.consumer.pop import PopMode, is_same_place
from penstock.client.consumer.pop_loop import PopTerms
from penstock.client.consumer.pulling import PullTerms
from penstock.client.consumer.push_options import PushConsumerOptions
from penstock.client.consumer.push_queues import PushQueues
from penstock.client.consumer.send_back import DEAD_LETTER_LEVEL, SendBack
from penstock.client.consumer.thresholds import QueueThresholds
from penstock.client.errors import ClientError
from penstock.client.instance import ClientInstance
from penstock.client.loop import CallRelay, client_loop, listener_loop, relay_to
from penstock.client.message import ReceivedMessage
from penstock.client.trace import Trace
from penstock.flow.thresholds import Thresholds
from penstock.model.assignment import QueueRef

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"


class LoopRuntime:
    """Time and tasks of the client's loop, for the services."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._loop = asyncio.get_running_loop()

    def monotonic_ms(self) -> int:
        """Now."""
        return self._instance.clock.monotonic_ms()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Run it by itself; its errors are logged."""
        return self._instance.spawn(coroutine, name)

    def later(self, delay_ms: int, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call it after a while."""
        return self._loop.call_later(delay_ms / 1000, call, *args)


def offset_store(instance: ClientInstance, group: str, options: PushConsumerOptions) -> OffsetStore:
    """Where this consumer's offsets are kept."""
    own = options["offset_store"]
    if own is not None:
        return OwnOffsets(own)
    if options["is_broadcasting"]:
        directory = options["offsets_directory"]
        return LocalFileOffsets(offsets_file(directory, instance.client_id, group))
    return RemoteOffsets(instance.calls, group)


def listening(
    group: str,
    listener: Listener,
    options: PushConsumerOptions,
    hooks: Hooks,
    loop: asyncio.AbstractEventLoop | None,
) -> Listening:
    """Who calls the listener; coroutines run on ``loop``, or on a thread of their own."""
    caller = Caller(
        listener,
        hooks,
        takes_list=options["consume_batch"] > 1,
        timeout_ms=options["consume_timeout_ms"],
    )
    workers = options["consume_threads"]
    if not is_coroutine_listener(listener):
        return ThreadListening(client_loop(), caller, workers, f"penstock-{group}")
    relay: CallRelay = relay_to(loop if loop is not None else listener_loop().loop)
    return CoroutineListening(client_loop(), caller, workers, relay)


def thresholds(group: str, options: PushConsumerOptions) -> QueueThresholds:
    """The limits of each queue; an ordered queue has no span."""
    return QueueThresholds(
        group,
        Thresholds(
            options["pull_threshold_messages"],
            options["pull_threshold_bytes"],
            0 if options["is_ordered"] else options["pull_threshold_span"],
        ),
        topic_messages_max=max(0, options["topic_threshold_messages"]),
        topic_bytes_max=max(0, options["topic_threshold_bytes"]),
    )


def pull_terms(options: PushConsumerOptions) -> PullTerms:
    """The options of the pull loops."""
    return PullTerms(
        batch=options["pull_batch"],
        batch_bytes=options["pull_batch_bytes"],
        interval_ms=options["pull_interval_ms"],
        suspend_ms=options["pull_suspend_ms"],
        error_wait_ms=options["pull_error_wait_ms"],
        is_subscription_posted=options["is_subscription_posted"],
        is_broadcasting=options["is_broadcasting"],
    )


def pop_mode(
    queues: PushQueues,
    instance: ClientInstance,
    listening: Listening,
    options: PushConsumerOptions,
) -> PopMode | None:
    """The places to pop from, where a broker may switch the group to pop."""
    if not options["is_popping"] or options["is_broadcasting"]:
        return None
    terms = PopTerms(
        batch=options["pop_batch"],
        invisible_ms=options["pop_invisible_ms"],
        poll_ms=options["pop_poll_ms"],
        unacked_max=options["pop_threshold"],
        error_wait_ms=options["pull_error_wait_ms"],
        is_ordered=options["is_ordered"],
        is_from_first=options["consume_from"] == ConsumeFrom.FIRST,
    )
    retries_max = options["retries_max"]
    return PopMode(
        queues,
        instance.calls,
        listening,
        terms,
        is_pulled=lambda place: any(is_same_place(place, each) for each in queues.owned()),
        has_route=lambda topic: has_route(instance, topic),
        consume_batch=options["consume_batch"],
        suspend_ms=options["suspend_ms"],
        reconsume_times_max=None if retries_max < 0 else retries_max,
    )


async def has_route(instance: ClientInstance, topic: str) -> bool:
    """Whether a topic exists, as a name server says now."""
    try:
        await instance.routes.look_up(topic)
    except ClientError:
        return False
    return True


def trace(instance: ClientInstance, group: str, options: PushConsumerOptions) -> Trace | None:
    """Where traces go, if any are wanted."""
    if not options["trace"]:
        return None
    sender = PlainSender(instance, f"{TRACE_GROUP}-{group}")
    return Trace(sender.send, topic=options["trace_topic"], records_max=options["trace_batch_max"])


def broker_locks(
    instance: ClientInstance,
    group: str,
    options: PushConsumerOptions,
    owned: Callable[[], Mapping[QueueRef, AssignedQueue]],
) -> BrokerLocks | None:
    """Locks at the broker; ordered broadcasting needs none: nobody shares its queues."""
    if not options["is_ordered"] or options["is_broadcasting"]:
        return None
    renewal_ms, stale_ms = options["lock_renewal_ms"], options["lock_stale_ms"]
    terms = LockTerms(renewal_ms=renewal_ms, stale_ms=stale_ms, lost_ms=2 * stale_ms)
    return BrokerLocks(instance.calls, group, owned=owned, clock=instance.clock, terms=terms)


def consume_service(
    queues: PushQueues,
    instance: ClientInstance,
    listening: Listening,
    options: PushConsumerOptions,
) -> ConsumeService:
    """Who sees to it that pulled messages are consumed."""
    group, offsets, statistics = queues.group, queues.offsets, queues.statistics
    runtime, sender = LoopRuntime(instance), PlainSender(instance)
    back = SendBack(group, options["retries_max"], instance.calls, sender)
    if not options["is_ordered"]:
        return ConcurrentService(
            runtime,
            listening,
            offsets,
            statistics,
            give_back=None if options["is_broadcasting"] else back,
            consume_batch=options["consume_batch"],
            consume_timeout_ms=options["consume_timeout_ms"],
            local_retry_ms=options["local_retry_ms"],
        )

    async def give_up(message: ReceivedMessage) -> bool:
        if options["is_broadcasting"]:
            return True
        return await back.give_back(message, DEAD_LETTER_LEVEL)

    return OrderedService(
        runtime,
        listening,
        offsets,
        statistics,
        give_up=give_up,
        locks=queues.locks,
        lost=instance.rebalance_now,
        terms=OrderedTerms(
            batch_max=options["consume_batch"],
            suspend_ms=options["suspend_ms"],
            reconsume_max=options["retries_max"],
            is_auto_commit=options["is_auto_commit"],
        ),
    )
