"""Producers, consumers and a reader of one real ``pulsar-client`` that live through faults.

    clients = RealClients(pulsar, url, topic)
    clients.begin()
    ...                                  kills, cut connections
    clients.finish(check_again=broker_still_counts_right)
    clients.check()

Each works in a thread of its own and knows of no fault: the client connects again by itself, sends
again what has no receipt, and goes on. Where the broker deduplicates, everything is stored once.

Not here: what exactly was answered to what (raw peers, ``kit/pulsar_peer.py``).
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.testing.running import eventually

KINDS: Final = ("Exclusive", "Failover", "Shared", "KeyShared")
READER: Final = "reader"
QUEUE_SIZE: Final = 100
"""Of each receiver."""
PENDING_MAX: Final = 200
"""Of each producer."""
RECEIVE_MS: Final = 100
"""So soon everybody sees that all is over."""
SECONDS_MAX: Final = 30.0


class RealClients:
    """Two producers, a subscription of each type, and a reader of one topic."""

    def __init__(self, library: Any, url: str, topic: str) -> None:
        self.confirmed: Final[dict[str, list[int]]] = {}
        """Name of a producer -> the numbers that it was told are stored."""
        self.taken: Final[dict[str, list[str]]] = {}
        """Type of a subscription, or ``READER`` -> what it got."""
        self._library = library
        logger = library.ConsoleLogger(library.LoggerLevel.Error)
        self._client = library.Client(
            url, logger=logger, operation_timeout_seconds=int(SECONDS_MAX) * 2
        )
        self._topic = topic
        self._sent: dict[str, int] = {}
        self._problems: list[tuple[str, int, object]] = []
        self._is_publishing = True
        self._is_over = False
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Everybody is there, and works."""
        self._publish("single", batching_enabled=False)
        self._publish("batch", batching_enabled=True, batching_max_publish_delay_ms=2)
        for kind in KINDS:
            self._consume(kind)
        reader = self._client.create_reader(
            self._topic, self._library.MessageId.earliest, receiver_queue_size=QUEUE_SIZE
        )
        self._take(READER, lambda: reader.read_next(RECEIVE_MS))

    def wait_for_receipts(self, count: int) -> None:
        """So many more of each producer."""
        before = {name: len(told) for name, told in self.confirmed.items()}
        eventually(
            lambda: all(len(told) >= before[name] + count for name, told in self.confirmed.items()),
            SECONDS_MAX,
            "receipts come again",
        )

    def finish(self, look: Callable[[], None] = lambda: None) -> None:
        """No more is sent; when everybody has got everything, look, and end."""
        self._is_publishing = False
        try:
            eventually(self._has_all, SECONDS_MAX, "everybody has got everything")
            look()
        finally:
            self._is_over = True
            for thread in self._threads:
                thread.join(SECONDS_MAX)
            self._client.close()

    def check(self) -> None:
        """Everything was confirmed, is stored once, and came in order."""
        assert not self._problems
        wanted = {name: list(range(count)) for name, count in self._sent.items()}
        told = {name: sorted(numbers) for name, numbers in self.confirmed.items()}
        assert told == wanted
        # A reader goes on behind what it has: it shows what is stored, and how often.
        assert _by_name(self.taken[READER]) == wanted
        for kind in KINDS:
            first = list(dict.fromkeys(self.taken[kind]))
            if kind == "KeyShared":
                # Without a key each message is a key of its own.
                first.sort(key=lambda value: int(value.rpartition(":")[2]))
            assert _by_name(first) == wanted, kind

    def _publish(self, name: str, **options: Any) -> None:
        producer = self._client.create_producer(
            self._topic,
            producer_name=name,
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX,
            **options,
        )
        self.confirmed[name] = []
        self._sent[name] = 0

        def answered(number: int, result: Any, _: object) -> None:
            if result == self._library.Result.Ok:
                self.confirmed[name].append(number)
            else:
                self._problems.append((name, number, result))

        def run() -> None:
            for number in itertools.count():
                if not self._is_publishing:
                    break
                self._sent[name] = number + 1
                value = f"{name}:{number}".encode()
                producer.send_async(value, lambda *told, number=number: answered(number, *told))
            producer.flush()

        self._start(run)

    def _consume(self, kind: str) -> None:
        library = self._library
        consumer = self._client.subscribe(
            self._topic,
            kind,
            consumer_type=getattr(library.ConsumerType, kind),
            initial_position=library.InitialPosition.Earliest,
            receiver_queue_size=QUEUE_SIZE,
        )

        def take() -> Any:
            message = consumer.receive(RECEIVE_MS)
            consumer.acknowledge(message)
            return message

        self._take(kind, take)

    def _take(self, name: str, take: Callable[[], Any]) -> None:
        taken = self.taken[name] = []

        def run() -> None:
            while not self._is_over:
                with contextlib.suppress(self._library.Timeout):
                    taken.append(take().data().decode())

        self._start(run)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def _has_all(self) -> bool:
        total = sum(self._sent.values())
        if min(map(len, self.taken.values())) < total:
            return False
        wanted = {f"{name}:{each}" for name, count in self._sent.items() for each in range(count)}
        return all(wanted <= set(taken) for taken in self.taken.values())


def _by_name(values: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in values:
        name, _, number = each.rpartition(":")
        found.setdefault(name, []).append(int(number))
    return found
