"""Hosts and the two ids of a message.

    host          | ip (4 or 16) | port i32 |
    offset msgId  upper hex of: | store host | commitLogOffset i64 |                 32 or 56 chars
    UNIQ_KEY      upper hex of: | ip (4 or 16) | pid u16 | salt i32 | ms i32 | counter u16 |

The broker gives the offset id (it finds a message by it, D4), the client the unique key. ``ms`` of
a unique key counts from the start of the calendar month; RocketMQ takes the month of the local time
zone, we that of UTC, which nobody can tell from the id.

Not here: who knows the time and the process (both are handed in).
"""

from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Final

from penstock.model.clock import Clock
from penstock.wire.rocketmq.command import Malformed

_PORT: Final = Struct(">i")
_POSITION: Final = Struct(">q")
_UNIQUE_FIXED: Final = Struct(">HI")

HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
NO_HOST: Final = bytes(HOST_V4_BYTES)


@lru_cache(maxsize=1024)
def encode_host(ip: str, port: int) -> bytes:
    """8 bytes, or 20 for a version 6 address; loopback and mapped ones become version 4.

    ali-ons reads version 4 only and connects to ``::1`` where ``localhost`` is that.
    """
    try:
        address: IPv4Address | IPv6Address = ip_address(ip.partition("%")[0])
    except ValueError:
        raise Malformed(f"{ip!r} is no IP address") from None
    if isinstance(address, IPv6Address):
        if address.is_loopback:
            address = IPv4Address("127.0.0.1")
        elif address.ipv4_mapped is not None:
            address = address.ipv4_mapped
    if not 0 <= port <= 65535:
        raise Malformed(f"{port} is no port")
    return address.packed + _PORT.pack(port)


def decode_host(host: bytes) -> tuple[str, int]:
    """(ip, port) of 8 or 20 bytes."""
    if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
        raise Malformed(f"a host has 8 or 20 bytes, not {len(host)}")
    ip = IPv4Address(host[:4]) if len(host) == HOST_V4_BYTES else IPv6Address(host[:16])
    return str(ip), _PORT.unpack(host[-4:])[0]


@lru_cache(maxsize=64)
def host_hex(host: bytes) -> bytes:
    """The front of every offset id of a store host."""
    return host.hex().upper().encode()


def offset_message_id(host: bytes, commit_log_offset: int) -> str:
    """The id a broker gives: where it is stored."""
    return f"{host_hex(host).decode()}{commit_log_offset & 0xFFFFFFFFFFFFFFFF:016X}"


def parse_offset_message_id(text: str) -> tuple[bytes, int]:
    """(store host, commitLogOffset) of an offset id."""
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        packed = b""
    host = packed[:-8]
    if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES) or len(text) != 2 * len(packed):
        raise Malformed(f"message id {text[:60]!r} is not 32 or 56 hex digits")
    return host, _POSITION.unpack(packed[-8:])[0]


class UniqueKeys:
    """Makes unique keys: one object per process, ``salt`` tells apart what shares a pid."""

    __slots__ = (
        "_clock",
        "_count",
        "_fixed",
        "_front",
        "_month_end_ms",
        "_month_start_ms",
        "_now_ms",
    )

    def __init__(self, ip: str, pid: int, clock: Clock, *, salt: int = 0) -> None:
        packed = encode_host(ip, 0)[:-4]
        self._fixed = (packed + _UNIQUE_FIXED.pack(pid & 0xFFFF, salt & 0xFFFFFFFF)).hex().upper()
        self._clock = clock
        self._count = 0
        self._month_start_ms = self._month_end_ms = 0
        self._now_ms = -1
        self._front = ""

    def make(self) -> str:
        return self.make_at(self._clock.wall_ms())

    def make_at(self, now_ms: int) -> str:
        """The same, for who knows the (wall) time already."""
        if now_ms != self._now_ms:
            self._turn(now_ms)
        self._count = count = (self._count + 1) & 0xFFFF
        return f"{self._front}{count:04X}"

    def _turn(self, now_ms: int) -> None:
        """All keys of one millisecond share everything but the counter."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = month_of(now_ms)
        passed = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        self._now_ms = now_ms
        self._front = f"{self._fixed}{passed:08X}"


def month_of(now_ms: int) -> tuple[int, int]:
    """Start and end of the calendar month (UTC) in which a wall time lies."""
    first = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    is_december = first.month == 12
    after = first.replace(
        year=first.year + is_december, month=1 if is_december else first.month + 1
    )
    return int(first.timestamp()) * 1000, int(after.timestamp()) * 1000
