"""Brokers and name servers that are a table of answers: for tests of the client without a network.

    peer = RemotingPeer({RequestCode.GET_MAX_OFFSET: {"offset": "7"}})
    network = Network(options, clock, asked, connect=peer.connect)

An answer is an ``ext`` map, a ``Command``, a function of (address, request) giving one of those, or
``SILENT``. Requests are kept in ``asked``, in order. Addresses in ``dead`` refuse connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command, response_to
from penstock.wire.rocketmq.frames import RemotingFrames, encode

SILENT: Final = "silent"
Given = Mapping[str, str] | Command | str
Answer = Given | Callable[[str, Command], Given]


class PeerTransport(asyncio.Transport):
    """The client's side of one connection."""

    def __init__(self, peer: RemotingPeer, address: str, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.address = address
        self.writes: list[bytes] = []
        """What was written, call by call."""
        self.is_over = False
        self._peer = peer
        self._protocol = protocol
        self._frames = RemotingFrames()

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        """The client sends; the peer answers in a later turn."""
        self.writes.append(bytes(data))
        self._frames.feed(bytes(data))
        for command in self._frames.commands():
            self._peer.hear(self, command)

    def push(self, command: Command) -> None:
        """The peer sends."""
        if not self.is_over:
            self._protocol.data_received(encode(command))

    def break_off(self) -> None:
        """The peer hangs up."""
        if not self.is_over:
            self.is_over = True
            self._protocol.connection_lost(None)

    def close(self) -> None:
        """The client hangs up."""
        self.is_over = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered here."""

    def get_write_buffer_size(self) -> int:
        """Nothing is buffered here."""
        return 0


class RemotingPeer:
    """All peers of a test, by address."""

    def __init__(self, answers: Mapping[int, Answer] | None = None) -> None:
        self.answers: dict[int, Answer] = {
            int(code): each for code, each in (answers or {}).items()
        }
        self.asked: list[tuple[str, Command]] = []
        self.dead: set[str] = set()
        self.dials: list[str] = []
        self.transports: list[PeerTransport] = []

    async def connect(self, protocol: asyncio.Protocol, host: str, port: int) -> None:
        """What ``Network`` dials with."""
        address = f"{host}:{port}"
        self.dials.append(address)
        await asyncio.sleep(0)
        if address in self.dead:
            raise ConnectionRefusedError("nobody listens")
        transport = PeerTransport(self, address, protocol)
        self.transports.append(transport)
        protocol.connection_made(transport)

    def codes(self, address: str | None = None) -> list[int]:
        """Codes of the requests so far, of one address or of all."""
        return [command.code for at, command in self.asked if address in (None, at)]

    def hear(self, transport: PeerTransport, command: Command) -> None:
        """A request or answer of the client arrived."""
        self.asked.append((transport.address, command))
        if command.is_oneway or command.is_response:
            return
        answer = self.answers.get(command.code, {})
        given = answer(transport.address, command) if callable(answer) else answer
        if given == SILENT:
            return
        if isinstance(given, Command):
            reply = response_to(
                command, given.code, ext=given.ext, body=given.body, remark=given.remark
            )
        else:
            ext = dict(cast("Mapping[str, Any]", given))
            reply = response_to(command, ResponseCode.SUCCESS, ext=ext)
        asyncio.get_running_loop().call_soon(transport.push, reply)
