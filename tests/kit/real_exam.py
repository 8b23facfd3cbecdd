"""The exam with real clients: a broker that runs, asked over HTTP as ``penstock why`` does."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pika
import pytest
from click.testing import CliRunner

from penstock.cli.main import penstock
from penstock.settings.broker import PROTOCOLS
from penstock.settings.load import variable_name
from penstock.testing.running import BrokerProcess, eventually, running_broker

AT_ONCE_S: Final = 2
FOUND_S: Final = {"behind": 10}
"""Within which time of its beginning a thing is found, by its severity; else ``AT_ONCE_S``."""
OK_S: Final = 5
"""Within which time of its end the answer is ``ok`` again."""
SLACK_S: Final = 5
"""What a machine that is busy with other tests may take longer to bring something about. To the
millisecond it is asked on the manual clock (``tests/scenario/test_exam*.py``)."""
MIDDLE_S: Final = 1
"""How long after it was found it is asked for again."""
ROUNDING_MS: Final = 2
"""A moment is told by the wall clock, of which each look takes its own reading."""

ANY_PORTS: Final = {variable_name(f"listeners.{name}"): "0" for name in PROTOCOLS}
"""Advice may be to look whether a broker could start: the usual ports are others' business."""

Waiting = Sequence[Any] | int
"""Who waits: channels of pika or ids, or how many."""


class RealExam:
    """A broker, and connections that are closed at the end of a test."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.open: list[Any] = []

    def channel(self) -> Any:
        host, port = self.broker.address("amqp")
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
        self.open.append(connection)
        return connection.channel()

    def close(self) -> None:
        for connection in self.open:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()

    def run(self, command: str) -> str:
        words = [*shlex.split(command)[1:], "--data", str(self.broker.data)]
        result = CliRunner().invoke(penstock, words, env=ANY_PORTS)
        assert result.exit_code == 0, (command, result.output, result.exception)
        return result.output

    def page(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("penstock why --json"))
        return found

    def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page()["answer"]
        return found

    def found(
        self,
        severity: str,
        cause: str,
        culprit: str,
        *,
        name: str = "",
        waiting: Waiting = (),
        within_s: float = 0,
        meanwhile: Callable[[], object] | None = None,
    ) -> dict[str, Any]:
        """What is found in time, and again in its middle; the latter.

        ``within_s`` is for what is only said after a time of its own, ``meanwhile`` for what goes
        on between two looks.
        """
        last: dict[str, Any] = {}

        def asked() -> bool:
            if meanwhile is not None:
                meanwhile()
            last.clear()
            last.update(self.answer())
            return self._is_right(last, (severity, cause, culprit, name), waiting)

        try:
            eventually(asked, (within_s or FOUND_S.get(severity, AT_ONCE_S)) + SLACK_S)
            found = dict(last)
            until = time.monotonic() + MIDDLE_S
            while time.monotonic() < until:
                time.sleep(LOOK_S)
                assert asked()
        except AssertionError:
            expected = f"not {severity}, {cause}, {culprit}, {waiting}"
            pytest.fail(f"{expected}: {json.dumps(last, indent=1)}")
        # Asked again it is the same episode.
        assert last["id"] == found["id"]
        assert abs(last["since_ms"] - found["since_ms"]) <= ROUNDING_MS
        return dict(last)

    def _is_right(
        self, answer: dict[str, Any], expected: tuple[str, ...], waiting: Waiting
    ) -> bool:
        severity, cause, culprit, name = expected
        if (answer["severity"], answer["cause"]) != (severity, cause):
            return False
        if not answer["culprit_id"].startswith(culprit) or name not in answer["culprit"]["name"]:
            return False
        if isinstance(waiting, int):
            return bool(answer["waiters_total"] == waiting)
        told = [f"{each['id']} {each['name']} " for each in answer["waiters"]]
        named = [any(f"{_place(one)} " in each for each in told) for one in waiting]
        return all(named) and len(waiting) == answer["waiters_total"]

    def helps(self, found: dict[str, Any]) -> None:
        """Do what is advised."""
        assert found["do"]
        for advice in found["do"]:
            self.run(advice["command"])

    def ok(self, meanwhile: Callable[[], object] | None = None) -> None:
        """It is over, or is about to be: all is well in time."""

        last: dict[str, Any] = {}

        def asked() -> bool:
            if meanwhile is not None:
                meanwhile()
            last.update(self.answer())
            return bool(last["severity"] == "ok")

        try:
            eventually(asked, OK_S + SLACK_S)
        except AssertionError:
            pytest.fail(f"not ok: {json.dumps(last, indent=1)}")


LOOK_S: Final = 0.2


def _place(one: Any) -> str:
    """What the name of a waiter ends with: an id, or where pika's connection comes from."""
    if isinstance(one, str):
        return one
    host, port = one.connection._impl._transport._sock.getsockname()
    return f"{host}:{port}"


@contextlib.contextmanager
def exam_broker(*flags: str) -> Iterator[BrokerProcess]:
    """A broker with a queue that nobody reads on purpose."""
    with running_broker(*flags) as started:
        exam = RealExam(started)
        channel = exam.channel()
        channel.queue_declare("audit", durable=True)
        for _ in range(20):
            channel.basic_publish("", "audit", b"x")
        exam.close()
        yield started


@contextlib.contextmanager
def examined(broker: BrokerProcess) -> Iterator[RealExam]:
    """All is well before."""
    exam = RealExam(broker)
    exam.ok()
    yield exam
    exam.close()


def queue(channel: Any, name: str, **arguments: Any) -> str:
    channel.queue_delete(name)
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=named)
    return name


def publish(channel: Any, name: str, count: int = 1, size: int = 1) -> None:
    for _ in range(count):
        channel.basic_publish("", name, b"x" * size)


def consume(channel: Any, name: str, tag: str, prefetch: int) -> None:
    channel.basic_qos(prefetch_count=prefetch)
    channel.basic_consume(name, lambda *_: None, consumer_tag=tag)
    channel.connection.process_data_events(0.1)


def ack_all(channel: Any) -> Callable[[], None]:
    """Takes and acks what there is, whenever it is called."""

    def ack() -> None:
        channel.basic_ack(0, multiple=True)
        channel.connection.process_data_events(0)

    return ack
