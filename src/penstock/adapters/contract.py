"""What a protocol must offer to live in Penstock: the page for authors of adapters.

An adapter is one connection's protocol, without a socket, a thread, an event loop or a clock of its
own. Bytes come in, verbs of the engine are called, bytes go back. ``server/pump.py`` owns the
socket and is the only caller of an ``Adapter``; the engine is the only caller of the ``Outlet``
that the adapter gives it (usually the same object).

Who calls what, and when, in one turn of the broker::

    socket readable   (the pump keeps the bytes for the turn; many of them it hands on at once)
    a turn begins     pump -> adapter.receive(data)       decode all of it, call engine verbs
                                                          (channel.publish(list), settle, permits)
    the turn          engine.turn() -> outlet.deliver(), refused(), gate_changed() ...
    after a sync      engine.synced() -> outlet.confirmed()
    end of the turn   pump -> adapter.outgoing()          everything to send, as a list
                      pump joins it, ONE transport.write
                      pump -> adapter.flushed(unsent)     what the socket has not taken yet (F14)
                      pump looks at is_reading, wants_close, next_deadline_ms()
    a deadline        pump -> adapter.due(now_ms)         heartbeats, protocol time-outs
    the peer is done  pump -> adapter.eof()               it will send no more; may still read
    the broker stops  pump -> adapter.stopping(why)       say goodbye in the protocol's words
    the very end      pump -> adapter.closed(why)         exactly once, whatever happened before

Rules:

* **Wake.** After ``receive``, ``due``, ``eof`` and ``stopping`` the pump looks at the adapter by
  itself. When anything changes at another time (the engine called the outlet), the adapter calls
  the ``wake`` it was made with: once or a hundred times, the connection is looked at once, at the
  end of the running turn. Forgetting it means bytes that stay until the next wake.
* **Gate.** ``is_reading`` is the valve of F2: False stops the socket. The engine's
  ``Connection.may_read`` knows when: not while the gate is closed, except that held publishes which
  still fit the connection's share do not stop the acks and requests behind them (D23). ``receive``
  is not called again before it is True, but bytes already given must be kept.
* **Bounds.** Anything a peer can make grow needs a named limit. The pump stops reading by itself
  while the peer does not take its answers, so an adapter may answer every request it gets.
* **Errors of the peer** are answered in the protocol's own words: queue the bytes, set
  ``wants_close``; the pump sends them and then closes. **Errors of ours** (an exception leaving
  any of these methods) cost this connection only: it is logged, aborted and ``closed``.
* **Handshake.** Until ``is_established`` the pump allows the peer few bytes and little time
  (``listeners.handshake_bytes_max``, ``handshake_ms_max``). An adapter whose first request may be
  larger says so (``handshake_bytes_max``) and bounds what it keeps of it by itself.
* Nothing here is ever called from another thread, nor while another call of the same adapter runs.

Not here: what the engine offers and what it calls back (``engine/ports.py``), and the socket
(``server/pump.py``).
"""

from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.model.clock import Clock
from penstock.model.ids import ConnectionId

if TYPE_CHECKING:
    from penstock.engine.broker import Engine


UNTAKEN_BYTES_MAX: Final = 2 * 1024 * 1024
"""Answers a peer may leave in our write buffer before it is not read any more. Above F14's limit,
so that deliveries alone never pause a socket that also brings the acks they wait for."""


def is_loopback(host: str) -> bool:
    """True for an address of this machine itself."""
    try:
        return ip_address(host.partition("%")[0].removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


class Peer(NamedTuple):
    """Both ends of a connection: the address to advertise is the one the client dialled."""

    host: str
    port: int
    local_host: str
    local_port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def maker(self) -> str:
        """For whom it counts what this peer makes (``flow/reserve.py``)."""
        return str(self) if is_loopback(self.host) else self.host


class Adapter(Protocol):
    """One connection of one protocol."""

    @property
    def is_established(self) -> bool:
        """True once the handshake is done and the ordinary limits apply."""
        ...

    @property
    def handshake_bytes_max(self) -> int | None:
        """Bytes it may be given before it is established; None: as the listeners' settings say."""
        ...

    @property
    def is_reading(self) -> bool:
        """False while the socket must not be read (the gate, or no room for what is held)."""
        ...

    @property
    def wants_close(self) -> bool:
        """True when the connection is to be closed after what is outgoing was sent."""
        ...

    def receive(self, data: bytes) -> None:
        """Take what the socket gave: any cut, from one byte to many frames."""
        ...

    def outgoing(self) -> list[bytes]:
        """Hand over everything to send, in order; the adapter forgets it."""
        ...

    def flushed(self, unsent_bytes: int) -> None:
        """After a write: this much of all that was handed over is not taken by the socket yet.

        Called after every write (0 for a peer that keeps up) and again with 0 when a slow one has
        caught up. Deliveries among the unsent bytes count against F14.
        """
        ...

    def next_deadline_ms(self) -> int | None:
        """Monotonic time at which ``due`` wants to be called; None for never."""
        ...

    def due(self, now_ms: int) -> None: ...

    def eof(self) -> None:
        """The peer will send no more. Set ``wants_close`` unless answers are still to come."""
        ...

    def stopping(self, reason: str) -> None:
        """The broker is going down: queue the protocol's close, if any, and set ``wants_close``.

        Confirms of what is durable were handed over before.
        """
        ...

    def closed(self, reason: str) -> None:
        """The connection is gone, ``reason`` says why; give everything back to the engine."""
        ...


class AdapterFactory(Protocol):
    """Makes the adapters of one listener."""

    @property
    def protocol(self) -> str:
        """Name of the listener in settings, ready file, logs and metrics: ``amqp``, ``pulsar``."""
        ...

    def make(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: "Engine",
        clock: Clock,
        wake: Callable[[], None],
    ) -> Adapter:
        """An adapter for a connection that was just accepted."""
        ...
