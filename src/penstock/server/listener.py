"""Listening sockets: which addresses, which ports, and an accept loop that nothing can kill.

Ports are bound early and listen late: a taken port is told before a long recovery, and until it is
done peers are refused instead of waiting in a queue that nobody serves.

The loop's own ``create_server`` stops listening for good under uvloop, and for a second under
asyncio, when file handles run out; this one counts, turns the peer away with a spare handle, rests
for a moment and goes on (T9). A peer above the limit is closed before any object is made for it.

How many peers may be connected is a ``ConnectionLimit``: protocol listeners share one, HTTP has its
own, so that it answers in a flood. Whoever has not said anything good yet (no log-in, no request)
holds its place only until somebody else wants it, the oldest first. The limit never reaches into
the file handles that the log needs (T9): a flood of peers is refused long before a segment cannot
be opened.

Not here: what happens on a connection (``pump.py``, ``http/``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from penstock.adapters.contract import Peer
from penstock.model.errors import StartRefused
from penstock.settings.broker import ListenerSettings

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTS_PER_WAKE_MAX: Final = 16
"""Then the loop serves the others first: a storm of connects must not hold a turn back. Far fewer
than idle peers may be, so that a new one is heard before it can be the oldest."""

REST_SECONDS: Final = 0.1
"""Pause of the accept loop when the process has no file handle left."""

QUIET_SECONDS: Final = 10.0
EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
PORT_TRIES_MAX: Final = 20
"""Free IPv4 ports to try until the same number is free for IPv6, too."""

MakeProtocol = Callable[[Peer, "ConnectionPlace"], asyncio.BaseProtocol]
"""Makes the protocol of a new connection; it must ``release`` its place when it is lost."""


def open_sockets(
    name: str, hosts: Sequence[str], port: int, *, receive_bytes: int = 0
) -> list[socket.socket]:
    """Bound sockets of one listener, all on one port; ``StartRefused`` when it is taken."""
    for attempt in range(1, PORT_TRIES_MAX + 1):
        opened: list[socket.socket] = []
        try:
            number = port
            for host in hosts:
                listening = _open(host, number, receive_bytes)
                if listening is not None:
                    opened.append(listening)
                    number = listening.getsockname()[1]
        except OSError as error:
            for listening in opened:
                listening.close()
            if port == 0 and error.errno == errno.EADDRINUSE and attempt < PORT_TRIES_MAX:
                continue
            raise _refused(name, hosts, port, error) from None
        if opened:
            return opened
        break
    raise StartRefused(f"listener {name}: this machine has none of {', '.join(hosts)}; use --bind")


def _open(host: str, port: int, receive_bytes: int) -> socket.socket | None:
    """One bound socket; None when the machine has no such address family at all."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_bytes:
            # Inherited by every connection; before listen, so that the window is scaled for it.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL and host == "::1":
            return None  # IPv6 is switched off here; IPv4 loopback alone will do
        raise
    return listening


def _refused(name: str, hosts: Sequence[str], port: int, error: OSError) -> StartRefused:
    flag = "--" + name.replace("_", "-")
    where = f"port {port} for {name} on {' and '.join(hosts)}"
    if error.errno == errno.EADDRINUSE:
        return StartRefused(
            f"{where} is taken by another process; stop it, or use {flag} with another port, "
            "0 for any free one, or off"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return StartRefused(f"{where} is not allowed to this user; use {flag} with one above 1023")
    return StartRefused(f"{where} cannot be opened: {error.strerror}; use another --bind or {flag}")


class Listener:
    """Accepts on the sockets of one name and hands each connection to its protocol."""

    def __init__(
        self,
        name: str,
        sockets: Sequence[socket.socket],
        limit: ConnectionLimit,
        make_protocol: MakeProtocol,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self._sockets = list(sockets)
        self._limit = limit
        self._make_protocol = make_protocol
        self._loop = loop
        self._spare: int | None = _spare_handle()
        self._resting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._arriving: set[asyncio.Task[None]] = set()
        self._quiet_until = 0.0
        self._is_stopped = False

    @property
    def endpoint(self) -> str:
        """``host:port`` of the first address, as the ready file gives it."""
        host, port = self._sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Begin to accept; ``StartRefused`` when somebody else listens there since it was bound."""
        for listening in self._sockets:
            host, port = listening.getsockname()[:2]
            try:
                listening.listen(BACKLOG)
            except OSError as error:
                raise _refused(self.name, (host,), port, error) from None
            self._loop.add_reader(listening, self._accept, listening)

    def stop(self) -> None:
        """Accept no more; connections live on. A second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        for timer in self._resting.values():
            timer.cancel()
        self._resting.clear()
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        for task in self._arriving:
            task.cancel()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_WAKE_MAX):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._exhausted(listening)
                    return
                continue  # this peer gave up between connect and accept
            place = self._limit.acquire(address[0])
            if place is None:
                connection.close()
                continue
            peer = Peer(*address[:2], *connection.getsockname()[:2])
            task = self._loop.create_task(self._arrive(connection, peer, place))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _arrive(self, connection: socket.socket, peer: Peer, place: ConnectionPlace) -> None:
        made: list[asyncio.BaseProtocol] = []

        def protocol() -> asyncio.BaseProtocol:
            made.append(self._make_protocol(peer, place))
            return made[0]

        try:
            if place.is_released:  # by the many that came since
                connection.close()
                return
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(protocol, connection)
        except Exception as error:  # gone already, or a mistake in an adapter: this peer only
            connection.close()
            if not made:
                place.release()
            if not isinstance(error, OSError):
                logger.error(
                    "a connection could not be served",
                    exc_info=error,
                    extra={"listener": self.name, "peer": str(peer)},
                )

    def _exhausted(self, listening: socket.socket) -> None:
        """No file handle left: close one peer with the spare, then rest."""
        self._limit.refused[NO_FILES] += 1
        now = self._loop.time()
        if now >= self._quiet_until:  # one line per episode, the counter has the rest
            self._quiet_until = now + QUIET_SECONDS
            logger.warning("no file handle left to accept with", extra={"listener": self.name})
        if self._spare is not None:
            os.close(self._spare)
            with contextlib.suppress(OSError):
                listening.accept()[0].close()
            self._spare = _spare_handle()
        self._loop.remove_reader(listening)
        self._resting[listening] = self._loop.call_later(REST_SECONDS, self._rested, listening)

    def _rested(self, listening: socket.socket) -> None:
        self._resting.pop(listening, None)
        if self._spare is None:
            self._spare = _spare_handle()
        self._loop.add_reader(listening, self._accept, listening)


def _spare_handle() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None


# ---- limits -------------------------------------------------------------------------------------


RESERVED_FILES: Final = 96
"""Handles kept for log segments, indexes, SQLite and ourselves when the process may have few."""

HEALTH_PLACES: Final = 8
"""HTTP connections above all limits: who only asks for ``/livez`` and ``/readyz`` is answered."""

TOO_MANY: Final = "too many connections"
TOO_MANY_OF_ADDRESS: Final = "too many from one address"
MADE_ROOM: Final = "idle, made room"
NO_FILES: Final = "no file handles"


class ConnectionPlace:
    """The place of one connection: idle at first, then busy, for HTTP idle again; given back once.

    An idle one may be taken by a newcomer, who has ``end`` called and its place at once.
    """

    __slots__ = ("_limit", "address", "end", "is_for_health", "is_idle", "is_released")

    def __init__(self, limit: ConnectionLimit, address: str, *, is_for_health: bool) -> None:
        self._limit = limit
        self.address: Final = address
        self.end: Callable[[], None] = _nothing
        """Set by the connection: how to end it at once."""
        self.is_for_health: Final = is_for_health
        """Given above the limits: good for a health check and nothing else."""
        self.is_idle = True
        self.is_released = False

    def busy(self) -> None:
        """The peer has logged in, or asked something: it stays."""
        if self.is_idle and not self.is_released:
            self.is_idle = False
            self._limit.left_idle(self)

    def idle(self) -> None:
        """Answered, nothing else asked; now the youngest of the idle ones."""
        if not self.is_idle and not self.is_released:
            self.is_idle = True
            self._limit.became_idle(self)

    def release(self) -> None:
        """The connection is gone; only the first call counts."""
        if not self.is_released:
            self.is_released = True
            self._limit.left(self)


def _nothing() -> None:
    pass


class ConnectionLimit:
    """A bounded number of connections, bounded per address, and of idle ones a smaller number."""

    def __init__(
        self,
        connections_max: int,
        *,
        per_address_max: int,
        idle_max: int = 0,
        idle_per_address_max: int = 0,
        health_max: int = 0,
    ) -> None:
        """``idle_max``: 0 = as many as connections; ``health_max``: places above all limits."""
        self.connections_max = connections_max
        self._per_address_max = per_address_max
        self._idle_max = idle_max or connections_max
        self._idle_per_address_max = idle_per_address_max or per_address_max
        self._health_max = health_max
        self._per_address: Counter[str] = Counter()
        self._idle: dict[ConnectionPlace, None] = {}
        """Oldest first, those for health checks apart."""
        self._idle_of: dict[str, dict[ConnectionPlace, None]] = {}
        """The same by address; none without one."""
        self._health: dict[ConnectionPlace, None] = {}
        self.taken = 0
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        """Reason -> how many; the reasons are the constants of this module."""

    def acquire(self, address: str) -> ConnectionPlace | None:
        """A place for a peer, if need be that of the oldest idle one; None: there are too many."""
        own = self._idle_of.get(address, {})
        is_full = self._per_address[address] >= self._per_address_max
        if is_full or len(own) >= self._idle_per_address_max:
            if not self._make_room(own):
                return self._health_place(address, TOO_MANY_OF_ADDRESS)
        elif (
            self.taken >= self.connections_max or len(self._idle) >= self._idle_max
        ) and not self._make_room(self._idle):
            return self._health_place(address, TOO_MANY)
        place = ConnectionPlace(self, address, is_for_health=False)
        self.taken += 1
        self._per_address[address] += 1
        self.accepted += 1
        self.became_idle(place)
        return place

    def _health_place(self, address: str, reason: str) -> ConnectionPlace | None:
        self.refused[reason] += 1
        if not self._health_max:
            return None
        if len(self._health) >= self._health_max:
            _end(next(iter(self._health)))
        place = ConnectionPlace(self, address, is_for_health=True)
        self._health[place] = None
        return place

    def _make_room(self, idle: dict[ConnectionPlace, None]) -> bool:
        oldest = next(iter(idle), None)
        if oldest is None:
            return False
        self.refused[MADE_ROOM] += 1
        _end(oldest)
        return True

    # Called by places.

    def became_idle(self, place: ConnectionPlace) -> None:
        if not place.is_for_health:
            self._idle[place] = None
            self._idle_of.setdefault(place.address, {})[place] = None

    def left_idle(self, place: ConnectionPlace) -> None:
        if self._idle.pop(place, place) is None:
            own = self._idle_of[place.address]
            del own[place]
            if not own:
                del self._idle_of[place.address]

    def left(self, place: ConnectionPlace) -> None:
        if place.is_for_health:
            self._health.pop(place, None)
            return
        self.left_idle(place)
        self.taken -= 1
        self._per_address[place.address] -= 1
        if self._per_address[place.address] <= 0:
            del self._per_address[place.address]


def _end(place: ConnectionPlace) -> None:
    # First the place: the connection tells of its end only in the next iteration of the loop.
    place.release()
    place.end()


def protocol_limit(settings: ListenerSettings) -> ConnectionLimit:
    """The limit of all protocol listeners together, within what the process may open."""
    room = files_max() - RESERVED_FILES - settings.http_connections_max - HEALTH_PLACES
    return ConnectionLimit(
        max(1, min(settings.connections_max, room)),
        per_address_max=settings.connections_per_address_max,
        idle_max=settings.strangers_max,
        idle_per_address_max=settings.strangers_per_address_max,
    )


def http_limit(settings: ListenerSettings) -> ConnectionLimit:
    """The limit of HTTP, apart from that of the protocols; health checks have more."""
    limit = settings.http_connections_max
    return ConnectionLimit(
        limit,
        per_address_max=min(limit, settings.http_connections_per_address_max),
        health_max=HEALTH_PLACES,
    )


def files_max() -> int:
    """Files this process may have open, after raising the soft limit as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS has a hard limit that it does not grant
            pass
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
