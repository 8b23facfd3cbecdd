"""A scene that is played: a private broker, a narrator, a ticker and the checks.

The broker is the real one, with faults allowed, on free ports and a directory that is thrown away.
Twice a second the ticker prints one line: what was confirmed, refused and consumed, which stages
are held, and what the broker itself says is the bottleneck, read from ``/api/flow`` like any
operator would. A scene fails when a check fails or when it takes longer than it may.
"""

import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import click

from penstock.cli.http_client import address, send
from penstock.cli.remoting import RemotingClient
from penstock.demo.actors import EngineConsumer, EnginePublisher, SteadySender
from penstock.demo.amqp_actors import AmqpLink
from penstock.demo.pulsar_actors import ClientProcess, PulsarLink
from penstock.demo.scenes import SCENES, module_of
from penstock.engine.topic import Topic
from penstock.model.errors import PenstockError
from penstock.model.names import topic_name
from penstock.server.faults import FaultOrder
from penstock.server.lifecycle import Broker
from penstock.settings.broker import PROTOCOLS
from penstock.settings.load import Given, load_settings

SCENE_SECONDS_MAX: Final = 30.0
"""D27: whoever wants to see one mechanism does not want to wait."""

TICK_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.1
WELL_SECONDS_MAX: Final = 5.0
"""Within which time the answer is ``ok`` after something has ended."""

FOUND_SECONDS_MAX: Final = 5.0
"""For how long a scene asks who is to blame. Two seconds are promised, the rest is for a machine
that is busy with other things."""

T = TypeVar("T")


class Blame(NamedTuple):
    """What the broker is to answer."""

    severity: str
    cause: str | tuple[str, ...]
    """Several: one becomes the other by time alone, and a look may come late."""
    culprit: str
    """How its id begins."""

    def is_told(self, answer: dict[str, Any]) -> bool:
        causes = (self.cause,) if isinstance(self.cause, str) else self.cause
        is_why = answer["severity"] == self.severity and answer["cause"] in causes
        return is_why and str(answer["culprit_id"]).startswith(self.culprit)


SLOW_DISK: Final = ("slow", "hung")
"""After five seconds it is said to hang."""


class TickedActor(Protocol):
    """Somebody whose doings are told by the ticker."""

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        ...

    def leave(self) -> None: ...


class Sends(Protocol):
    """A publisher that keeps book of the answers."""

    @property
    def confirmed_numbers(self) -> set[int]: ...

    @property
    def outstanding(self) -> int: ...


class Takes(Protocol):
    """A consumer that keeps what it settled."""

    @property
    def bodies(self) -> list[bytes]: ...


AnyActor = TypeVar("AnyActor", bound=TickedActor)


class Scene:
    """One performance of one scene."""

    broker: Broker

    def __init__(self, name: str, *, is_silent: bool = False) -> None:
        self.name: Final = name
        self.checks: list[tuple[str, bool, str]] = []
        """(what was claimed, whether it was so, the figures)."""
        self._actors: list[TickedActor] = []
        self._clients: list[RemotingClient] = []
        self._links: list[AmqpLink | PulsarLink | ClientProcess] = []
        self._is_silent = is_silent
        self._began = 0.0

    async def play(self) -> bool:
        """Start the broker, play, judge; True when every check holds."""
        file = import_module(module_of(self.name))
        # The scene speaks for itself; the broker's own lines would come in between.
        logger = logging.getLogger("penstock")
        level = logger.level
        logger.setLevel(logging.ERROR)
        with tempfile.TemporaryDirectory(prefix="penstock-scene-") as directory:
            self.broker = Broker(_settings(Path(directory), getattr(file, "SETTINGS", {})))
            await self.broker.start()
            self._began = time.monotonic()
            self.say(f"{SCENES[self.name]}; a private broker listens on {self._http}")
            ticker = asyncio.create_task(self._tick())
            try:
                await asyncio.wait_for(file.play(self), SCENE_SECONDS_MAX)
            except TimeoutError:
                self.check("the scene ends in time", False, f"over {SCENE_SECONDS_MAX:.0f} s")
            finally:
                ticker.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ticker
                self._clear_the_stage()
                await self.broker.stop()
                logger.setLevel(level)
        return self._judge()

    # What a scene uses.

    def topic(self, name: str) -> Topic:
        """A new topic with one queue."""
        return self.broker.engine.create_topic(topic_name(name))

    def publisher(
        self, name: str, topic: Topic, *, per_second: int, is_fast_failing: bool = False
    ) -> EnginePublisher:
        """A publisher with its own connection, publishing from now on."""
        return self.cast(
            EnginePublisher(
                self.broker, name, topic, per_second=per_second, is_fast_failing=is_fast_failing
            )
        )

    def consumer(self, name: str, topic: Topic, *, prefetch: int = 100) -> EngineConsumer:
        """A consumer with its own connection that settles what it gets."""
        return self.cast(EngineConsumer(self.broker, name, topic, prefetch=prefetch))

    @property
    def name_server(self) -> str:
        """Where a ``penstock.client`` finds this broker; use its blocking calls in ``away``."""
        return self.broker.endpoints["rocketmq"]

    def rocketmq(self, listener: str = "rocketmq_broker") -> RemotingClient:
        """A RocketMQ client with its own socket; it blocks, so use it in ``away``."""
        host, _, port = self.broker.endpoints[listener].rpartition(":")
        client = RemotingClient(host.strip("[]"), int(port))
        self._clients.append(client)
        return client

    def sender(self, name: str, topic: str, *, per_second: int, body_bytes: int) -> SteadySender:
        """A RocketMQ producer with its own socket and thread, sending from now on."""
        return self.cast(
            SteadySender(name, self.rocketmq, topic, per_second=per_second, body_bytes=body_bytes)
        )

    async def amqp(self, name: str) -> AmqpLink:
        """An AMQP client with its own socket; its actors are in ``demo/amqp_actors.py``."""
        link = await AmqpLink.connect(self.broker.endpoints["amqp"], name)
        self._links.append(link)
        return link

    async def pulsar(self, name: str) -> PulsarLink:
        """A socket for raw Pulsar frames; its actors are in ``demo/pulsar_actors.py``."""
        link = await PulsarLink.connect(self.broker.endpoints["pulsar"], name)
        self._links.append(link)
        return link

    def pulsar_process(self) -> ClientProcess:
        """A process with a Pulsar client of ours; its actors are in the same file."""
        process = ClientProcess(self.broker.endpoints["pulsar"])
        self._links.append(process)
        return process

    async def pulsar_consumer(self, topic: str, subscription: str, name: str) -> dict[str, Any]:
        """What the broker counts of a consumer, as ``pulsar-admin topics stats`` shows it."""
        page = await self.ask("GET", f"/admin/v2/persistent/public/default/{topic}/stats")
        consumers: list[dict[str, Any]] = page["subscriptions"][subscription]["consumers"]
        return next(each for each in consumers if each["consumerName"] == name)

    def cast(self, actor: AnyActor) -> AnyActor:
        """Let the ticker tell of somebody, who leaves when the scene is over."""
        self._actors.append(actor)
        return actor

    def dismiss(self, *actors: TickedActor) -> None:
        for actor in actors:
            self._actors.remove(actor)
            actor.leave()

    async def away(self, act: Callable[[], T]) -> T:
        """Do something that blocks, beside the broker's loop."""
        return await asyncio.to_thread(act)

    def order(self, order: FaultOrder) -> None:
        """Make a mechanism act; what ``penstock fault`` does."""
        assert self.broker.faults is not None
        self.say(click.style(f"fault: {self.broker.faults.order(order)}", fg="yellow"))

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], bool], seconds_max: float) -> bool:
        """Wait for a condition; False when it did not come true in time."""
        end = time.monotonic() + seconds_max
        while not condition():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.02)
        return True

    async def flow(self) -> dict[str, Any]:
        """What ``/api/flow`` says now."""
        page: dict[str, Any] = await self.ask("GET", "/api/flow")
        return page

    async def flow_when(
        self, is_it: Callable[[dict[str, Any]], bool], seconds_max: float = FOUND_SECONDS_MAX
    ) -> dict[str, Any]:
        """The same once it is so, or when that did not come true in time: a page may be old."""
        end = time.monotonic() + seconds_max
        while True:
            page = await self.flow()
            if is_it(page) or time.monotonic() > end:
                return page
            await asyncio.sleep(LOOK_SECONDS)

    async def ask(self, method: str, path: str, order: Any = None) -> Any:
        """What the broker's HTTP port answers; like any operator's script."""
        at = address(None, self._http)
        status, answer = await asyncio.to_thread(send, method, path, order, at=at)
        if status not in (200, 204):
            raise PenstockError(f"{method} {path} was answered {status}: {answer}")
        return answer

    def say(self, text: str) -> None:
        if not self._is_silent:
            click.echo(f"{self._at()}  {text}")

    def check(self, claim: str, is_true: bool, figures: str = "") -> None:
        """Something the scene claims; told at the end."""
        self.checks.append((claim, is_true, figures))

    async def check_answer(
        self,
        claim: str,
        blame: Blame,
        *,
        shows: Callable[[dict[str, Any]], bool] | None = None,
        seconds_max: float = FOUND_SECONDS_MAX,
    ) -> dict[str, Any]:
        """Who is to blame, and why, as ``/api/flow`` answers in time; the page that says so.

        ``shows``: what else is to be seen on it. What is asked for must last until this returns:
        on a busy machine nobody knows when it is looked at.
        """

        def is_right(page: dict[str, Any]) -> bool:
            return blame.is_told(page["answer"]) and (shows is None or shows(page))

        page = await self.flow_when(is_right, seconds_max)
        sentence = page["answer"]["sentence"]
        self.say(f"the broker says: {sentence}")
        self.check(claim, is_right(page), sentence)
        return page

    async def all_is_well(self) -> None:
        """Wait until nobody is to blame for anything, or long enough."""
        for _ in range(round(WELL_SECONDS_MAX / TICK_SECONDS)):
            await self.wait(TICK_SECONDS)
            if (await self.flow())["answer"]["severity"] == "ok":
                return

    async def check_all_is_well(self) -> None:
        """For scenes in which nobody is slow: the broker blames nobody either."""
        await self.all_is_well()
        answer = (await self.flow())["answer"]
        self.check("the broker blames nobody", answer["severity"] == "ok", answer["sentence"])

    async def check_nothing_lost(self, publishers: Sequence[Sends], consumer: Takes) -> None:
        """The check every scene ends with: what was confirmed was consumed, once, and no more."""
        is_answered = await self.until(lambda: not any(each.outstanding for each in publishers), 5)
        stored = sum(len(each.confirmed_numbers) for each in publishers)
        is_drained = await self.until(lambda: len(consumer.bodies) >= stored, 5)
        self.check("every publish was answered", is_answered)
        self.check(
            "consumed = confirmed; nothing refused was stored",
            is_drained and len(consumer.bodies) == len(set(consumer.bodies)) == stored,
            f"{len(consumer.bodies):,} consumed, {stored:,} confirmed",
        )

    # What a scene does for itself.

    @property
    def _http(self) -> str:
        return self.broker.endpoints["http"]

    def _at(self) -> str:
        return f"{time.monotonic() - self._began:5.1f} s"

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            page = await self.flow()
            answer = page["answer"]
            held = [stage for stage in page["stages"] if stage["state"] != "running"]
            states = ", ".join(
                f"{each['kind']} {each['name']} {each['state']}"
                + (f" ({each['reason']})" if each["reason"] else "")
                for each in held[:3]
            )
            figures = [actor.figures(TICK_SECONDS) for actor in self._actors]
            if figures or states:
                line = "  ".join(figures)
                self.say(line + (click.style(f"  {states}", fg="cyan") if states else ""))
            if held:
                self.say(click.style(f"         {answer['sentence']}", dim=True))

    def _clear_the_stage(self) -> None:
        for actor in self._actors:
            actor.leave()
        for client in self._clients:
            client.close()
        for link in self._links:
            link.leave()

    def verdict(self) -> dict[str, Any]:
        """The outcome, ready for JSON."""
        return {
            "scene": self.name,
            "is_good": all(is_true for _, is_true, _ in self.checks) and bool(self.checks),
            "checks": [
                {"claim": claim, "is_true": is_true, "figures": figures}
                for claim, is_true, figures in self.checks
            ],
        }

    def _judge(self) -> bool:
        for claim, is_true, figures in self.checks:
            mark = click.style("yes", fg="green") if is_true else click.style("NO ", fg="red")
            if not self._is_silent:
                click.echo(f"  {mark}  {claim}" + (f"  ({figures})" if figures else ""))
        is_good = bool(self.verdict()["is_good"])
        if not is_good:
            failed = sum(not is_true for _, is_true, _ in self.checks)
            click.echo(
                f"scene {self.name}: {failed} of {len(self.checks)} checks failed", sys.stderr
            )
        return is_good


SOON_BEHIND: Final = {"flow.behind_ms": "500"}
"""For scenes that show a reader who is behind: each is a few seconds long, and half a second of
waiting tells the same as five. All others run with the settings a broker comes with."""


def _settings(directory: Path, own: dict[str, str]) -> Any:
    given = {
        "broker.data": str(directory / "data"),
        "broker.faults": True,
        **{f"listeners.{name}": "0" for name in PROTOCOLS},
        "listeners.flight": "off",
        "broker.log_level": "error",
        **own,
    }
    flags = tuple(Given(key, value, "scene") for key, value in given.items())
    return load_settings(flags, environ={}, config=None)


# ---- waiting ------------------------------------------------------------------------------------
# Waiting in a scene that runs beside the broker's loop; on the loop it is ``Scene.until``.


POLL_SECONDS = 0.02


def comes_true(condition: Callable[[], bool], seconds_max: float) -> bool:
    """Wait for a condition; False when it did not come true in time."""
    end = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True
