"""One connection: an asyncio protocol on one side, a sans-IO adapter on the other.

The only code that owns a protocol socket. It moves bytes and keeps the peer honest; it knows
nothing of any protocol (``adapters/contract.py`` is what both sides agreed on).

Bytes are kept as they come and given to the adapter at the beginning of the turn, joined: decoding
ten packets costs little more than decoding one. A pump that has ``ARRIVED_BYTES_MAX`` does not wait
for the turn, so that decoding keeps step with the socket, and so does the gate.

Who stops whom:

* the adapter's gate (``is_reading``) stops the socket from being read: F2;
* a peer that does not take its answers stops being read, too (``UNTAKEN_BYTES_MAX``), so a client
  that only asks cannot fill our memory with replies;
* what the socket has not taken is told to the adapter after every write, which stops deliveries to
  this peer alone: F14. The write limit of the transport is 0, so "not taken" is exact;
* until the handshake is done the peer has few bytes and little time (T10).

An exception of the adapter costs this connection: logged, aborted, ``closed``. ``InvariantBroken``
alone goes up, because then the engine itself cannot be trusted.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from penstock.adapters.contract import UNTAKEN_BYTES_MAX, Adapter, AdapterFactory, Peer
from penstock.model.clock import Clock
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId
from penstock.server.listener import ConnectionLimit, ConnectionPlace, MakeProtocol
from penstock.server.turns import Turns
from penstock.settings.broker import ListenerSettings
from penstock.settings.declare import KIB

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

logger = logging.getLogger(__name__)

ARRIVED_BYTES_MAX: Final = 64 * KIB
"""Bytes that wait for the turn; from then on the adapter gets them as they come."""

HANDSHAKE_SETTING: Final = "listeners.handshake_bytes_max"

CLOSE_MS_MAX: Final = 5_000
"""A peer that is being closed has this long to take the last bytes."""


class ReceiveBuffer:
    """Bytes that wait for the turn."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        """Bytes of all parts; whoever adds one adds to it."""

    def take(self) -> bytes:
        parts, self.parts = self.parts, []
        self.size = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


class PumpContext:
    """What the pumps of one broker share."""

    __slots__ = ("aborted", "clock", "engine", "loop", "settings", "turns")

    def __init__(
        self,
        engine: "Engine",
        turns: Turns,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        settings: ListenerSettings,
    ) -> None:
        self.engine = engine
        self.turns = turns
        self.clock = clock
        self.loop = loop
        self.settings = settings
        self.aborted = 0
        """Connections that ended by a mistake of ours or in their handshake."""


class Pump(asyncio.Protocol):
    """One connection: moves bytes between its socket and its adapter.

    The adapter is called on the loop only, in the order things happened, and hears ``closed``
    exactly once, last. The pump knows no frame of any protocol; it bounds bytes and time.
    """

    def __init__(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        factory: AdapterFactory,
        context: PumpContext,
        on_lost: Callable[["Pump"], None],
        *,
        place: ConnectionPlace,
    ) -> None:
        self.connection_id: Final = connection_id
        self.peer: Final = peer
        self.protocol: Final = factory.protocol
        self._context = context
        self._on_lost = on_lost
        self.place: Final = place
        place.end = self._make_room
        self._transport: asyncio.Transport | None = None
        self._is_scheduled = False
        self._is_established = False
        self._is_paused = False
        """We stopped reading."""
        self._is_write_blocked = False
        """The socket did not take all of the last write."""
        self._is_draining = False
        """The broker stops: no further byte is read, what came before is still answered."""
        self._is_over = False
        """Closed, aborted or lost: the adapter hears ``closed`` and nothing else any more."""
        self._reason = "the connection was closed"
        self._handshake_deadline_ms = (
            context.clock.monotonic_ms() + context.settings.handshake_ms_max
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._received = ReceiveBuffer()
        self.received_bytes = 0
        self.sent_bytes = 0
        self._adapter: Final[Adapter] = factory.make(
            connection_id, peer, context.engine, context.clock, self._request_turn
        )

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # 0: pause_writing says exactly "the socket did not take it all", no more and no less.
        self._transport.set_write_buffer_limits(high=0)
        if self._is_over:  # it had to make room already
            self._transport.abort()
            return
        logger.debug("connected", extra=_extra(self))
        self._is_scheduled = False
        self._request_turn()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        # Called for every packet of every peer: what needs no call is not called.
        size = len(data)
        self.received_bytes += size
        arrived = self._received
        arrived.parts.append(data)
        arrived.size += size
        if arrived.size >= ARRIVED_BYTES_MAX:
            self.feed()
        if not self._is_scheduled:
            self._request_turn()
        turns = self._context.turns
        if turns.delayed is not None:
            turns.data_arrived()

    def eof_received(self) -> bool:
        """The peer will send no more; True keeps our side open for the last answers."""
        self._call(self._adapter.eof)
        return True

    def pause_writing(self) -> None:
        """The socket did not take all of it."""
        self._is_write_blocked = True

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self._call(lambda: self._adapter.flushed(0))

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone, whoever ended it."""
        self.feed()
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reason = f"the connection broke: {exc}" if exc is not None else self._reason
        try:
            self._adapter.closed(reason)
        except InvariantBroken as error:
            self._context.turns.broken(error)
        except Exception:
            logger.exception("an adapter failed to close", extra=_extra(self))
        logger.debug("disconnected", extra=_extra(self, reason=reason))
        self._on_lost(self)
        self._context.turns.request_turn()

    # What the broker calls.

    def feed(self) -> None:
        """Give the adapter what has arrived."""
        if not self._received.size or self._is_over:
            return
        adapter = self._adapter
        try:
            if adapter.is_reading:
                adapter.receive(self._received.take())
                if not self._is_established:
                    self._check_handshake()
            if not self._is_paused and not adapter.is_reading:
                self._pause(True)
        except Exception as error:
            self._fail(error)

    def flush(self) -> None:
        """At the end of a turn: one write, then what the adapter wishes."""
        self._is_scheduled = False
        transport = self._transport
        if self._is_over or transport is None:
            return
        adapter = self._adapter
        try:
            parts = adapter.outgoing()
            if parts:
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                self.sent_bytes += len(data)
                transport.write(data)
                adapter.flushed(transport.get_write_buffer_size() if self._is_write_blocked else 0)
            if adapter.wants_close:
                self._close()
                return
            is_open = adapter.is_reading
            is_stopped = self._is_draining or not is_open
            if self._is_write_blocked and transport.get_write_buffer_size() > UNTAKEN_BYTES_MAX:
                is_stopped = True
            if is_stopped != self._is_paused:
                self._pause(is_stopped)
            if self._received.size and is_open:
                self._request_turn()  # a sync returned, or the gate opened: for the next turn
            self._arm()
        except Exception as error:
            self._fail(error)

    def drain(self) -> None:
        """Read no more; what was read is finished and answered."""
        self._is_draining = True
        self._request_turn()

    def stop(self, reason: str) -> None:
        """The broker goes down: let the adapter say so, then close; needs no further turn."""
        self._reason = reason
        self._call(lambda: self._adapter.stopping(reason))
        self.flush()

    def abort(self, reason: str) -> None:
        """End it now, whatever is still unsent."""
        if not self._is_over:
            self._is_over = True
            self._reason = reason
            self._context.aborted += 1
        if self._transport is not None:
            self._transport.abort()

    # Private parts.

    def _request_turn(self) -> None:
        """The adapter's ``wake``: be looked at after the turn, once."""
        if not self._is_scheduled and not self._is_over:
            self._is_scheduled = True
            if self._transport is not None:
                self._context.turns.schedule(self)

    def _call(self, verb: Callable[[], None]) -> None:
        """What came before is heard before."""
        self.feed()
        if self._is_over:
            return
        try:
            verb()
        except Exception as error:
            self._fail(error)
            return
        self._request_turn()

    def _pause(self, is_paused: bool) -> None:
        assert self._transport is not None
        self._is_paused = is_paused
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _check_handshake(self) -> None:
        if self._look_established():
            return
        limit, name = self._adapter.handshake_bytes_max, "the protocol's limit"
        if limit is None:
            limit, name = self._context.settings.handshake_bytes_max, HANDSHAKE_SETTING
        if self.received_bytes > limit:
            self._break_off(f"no handshake within {limit} bytes ({name})")

    def _look_established(self) -> bool:
        if self._adapter.is_established:
            self._is_established = True
            self.place.busy()
        return self._is_established

    def _make_room(self) -> None:
        # Not logged each: a flood has thousands, and its figure in /metrics.
        self.abort("no handshake, and others want its place (listeners.strangers_max)")

    def _arm(self) -> None:
        due_ms = self._adapter.next_deadline_ms()
        if not self._is_established and not self._look_established():
            limit_ms = self._handshake_deadline_ms
            due_ms = limit_ms if due_ms is None else min(due_ms, limit_ms)
        if due_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return  # it fires earlier, finds nothing due and is armed again
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_ms = max(0, due_ms - self._context.clock.monotonic_ms())
        self._timer = self._context.loop.call_later(delay_ms / 1000, self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._is_over:
            return
        now_ms = self._context.clock.monotonic_ms()
        if not self._adapter.is_established and now_ms >= self._handshake_deadline_ms:
            seconds = self._context.settings.handshake_ms_max / 1000
            self._break_off(f"no handshake within {seconds:g} s (listeners.handshake_ms_max)")
            return
        due_ms = self._adapter.next_deadline_ms()
        if due_ms is not None and due_ms <= now_ms:
            self._call(lambda: self._adapter.due(now_ms))
        else:
            self._arm()

    def _close(self) -> None:
        """Close after the last bytes left; a peer that does not take them is cut off."""
        assert self._transport is not None
        self._is_over = True
        self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._context.loop.call_later(CLOSE_MS_MAX / 1000, self._transport.abort)

    def _break_off(self, reason: str) -> None:
        logger.info("connection cut off", extra=_extra(self, reason=reason))
        self.abort(reason)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, InvariantBroken):
            self._context.turns.broken(error)
        logger.error("a connection failed by our mistake", exc_info=error, extra=_extra(self))
        self.abort("an internal error")


def _extra(pump: Pump, **more: str) -> dict[str, object]:
    return {
        "connection": pump.connection_id,
        "protocol": pump.protocol,
        "peer": str(pump.peer),
        **more,
    }


# ---- pumps --------------------------------------------------------------------------------------
# All protocol connections that live: made for the listeners, told when the broker stops.


LOOK_SECONDS: Final = 0.01
"""How often a stop looks whether the last connection is gone."""


class Pumps:
    """The connections of all protocol listeners together; bounded by ``limit``."""

    def __init__(self, context: PumpContext, limit: ConnectionLimit) -> None:
        self.context: Final = context
        self.limit: Final = limit
        self.live: set[Pump] = set()
        self._ids = itertools.count(1)
        self._is_hurried = False

    def maker(self, factory: AdapterFactory) -> MakeProtocol:
        """What a listener calls for each connection of this protocol."""

        def make(peer: Peer, place: ConnectionPlace) -> asyncio.Protocol:
            pump = Pump(
                ConnectionId(next(self._ids)), peer, factory, self.context, self._lost, place=place
            )
            self.live.add(pump)
            return pump

        return make

    def drain(self) -> None:
        """Read nothing more from anybody."""
        for pump in self.live:
            pump.drain()

    async def stop(self, reason: str, seconds_max: float) -> None:
        """Let every connection say goodbye; cut off those that take too long."""
        for pump in list(self.live):
            pump.stop(reason)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds_max
        while self.live and loop.time() < until and not self._is_hurried:
            await asyncio.sleep(LOOK_SECONDS)
        for pump in list(self.live):
            pump.abort(reason)
        # Aborted transports report their loss in the next iterations.
        for _ in range(3):
            await asyncio.sleep(0)

    def hurry(self) -> None:
        """Wait for nobody any longer."""
        self._is_hurried = True

    def _lost(self, pump: Pump) -> None:
        self.live.discard(pump)
        pump.place.release()
