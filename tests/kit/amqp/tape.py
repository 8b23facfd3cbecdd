"""Tapes: what a real client and RabbitMQ said to each other, played again to a session in memory.

A tape is text: a title, then a line per piece, ``1>`` from the client of connection 1, ``1<`` from
the broker, in hex and in the order of a link between them. ``replay`` sends the client's pieces to
a bench and gives what it answered; ``account`` says what a broker said in a form that does not
depend on time: per channel the answers, the deliveries, the confirmed and refused publishes.

Not here: making tapes (``tests/interop/amqp/record_tapes.py``).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, Final, NamedTuple

from kit.amqp.peer import AmqpBench, AmqpPeer
from penstock.wire.amqp.codes import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from penstock.wire.amqp.frames import CONTENT_HEAD, AmqpFrames
from penstock.wire.amqp.methods import decode_method
from penstock.wire.amqp.methods.basic import Ack, Cancel, Deliver, GetOk, Nack, Return
from penstock.wire.amqp.methods.connection import Start

LINE_BYTES_MAX: Final = 48
"""Of a piece on one line; a longer one goes on in the next."""
PIECE_BYTES: Final = 65_536
ROUNDS_MAX: Final = 1000


class Piece(NamedTuple):
    """Some bytes of one side."""

    connection: int
    is_client: bool
    data: bytes


class Tape(NamedTuple):
    """A conversation."""

    title: str
    pieces: list[Piece]

    @classmethod
    def load(cls, path: Path) -> Tape:
        """Read it; pieces of one side that follow each other are one."""
        title, *lines = path.read_text().splitlines()
        pieces: list[Piece] = []
        for line in lines:
            mark, _, text = line.partition(" ")
            piece = Piece(int(mark[:-1]), mark[-1] == ">", bytes.fromhex(text))
            if pieces and pieces[-1][:2] == piece[:2]:
                piece = piece._replace(data=pieces.pop().data + piece.data)
            pieces.append(piece)
        return cls(title.removeprefix("# "), pieces)

    def save(self, path: Path) -> None:
        """Write it."""
        lines = [f"# {self.title}"]
        for piece in self.pieces:
            mark = f"{piece.connection}{'>' if piece.is_client else '<'}"
            data = piece.data
            lines += [
                f"{mark} {data[at : at + LINE_BYTES_MAX].hex()}"
                for at in range(0, len(data), LINE_BYTES_MAX)
            ]
        path.write_text("\n".join(lines) + "\n")

    def said(self) -> dict[int, bytes]:
        """What the broker said to each connection."""
        found = {piece.connection: b"" for piece in self.pieces}
        for piece in self.pieces:
            if not piece.is_client:
                found[piece.connection] += piece.data
        return found


def replay(tape: Tape, bench: AmqpBench, cut_bytes: int = 0) -> dict[int, bytes]:
    """Send the client's pieces, cut if wanted; what each connection heard."""
    peers: dict[int, AmqpPeer] = {}
    heard: dict[int, bytes] = {}
    for piece in tape.pieces:
        if not piece.is_client:
            continue
        peer = peers.get(piece.connection)
        if peer is None:
            peer = peers[piece.connection] = bench.peer()
            heard[piece.connection] = b""
        step = cut_bytes or len(piece.data)
        for at in range(0, len(piece.data), step):
            peer.session.receive(piece.data[at : at + step])
        _come_to_rest(bench, peers, heard)
    return heard


def _come_to_rest(bench: AmqpBench, peers: dict[int, AmqpPeer], heard: dict[int, bytes]) -> None:
    for _ in range(ROUNDS_MAX):
        bench.settle()
        moved = False
        for number, peer in peers.items():
            data = b"".join(peer.session.outgoing())
            peer.session.flushed(0)
            heard[number] += data
            moved = moved or bool(data)
        if not moved and not bench.engine.needs_turn:
            return
    raise AssertionError("the engine does not come to rest")


class Account:
    """What a broker said on one channel, whenever it said it."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        """Methods, in order; with properties and body where they have them."""
        self.deliveries: list[Any] = []
        self.returns: list[Any] = []
        self.cancels: list[Any] = []
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()

    def add(self, method: Any) -> list[Any] | None:
        """Note a method; the list whose last entry awaits the content, if there is one."""
        if isinstance(method, Ack | Nack):
            self._confirm(method)
            return None
        if isinstance(method, Start):
            # Product, version and the names of nodes are everybody's own.
            capabilities = method.server_properties["capabilities"]
            self.answers.append((set(method.mechanisms.split()), capabilities))
            return None
        into: dict[type[Any], list[Any]] = {
            Deliver: self.deliveries,
            Return: self.returns,
            Cancel: self.cancels,
        }
        entries = into.get(type(method), self.answers)
        entries.append([method, b"", b""])
        return entries if isinstance(method, Deliver | Return | GetOk) else None

    def _confirm(self, method: Ack | Nack) -> None:
        tag = method.delivery_tag
        known = self.confirmed | self.refused
        first = 1 if method.is_multiple else tag
        tags = set(range(first, tag + 1)) - known
        (self.confirmed if isinstance(method, Ack) else self.refused).update(tags)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and vars(self) == vars(other)

    def __hash__(self) -> int:
        raise TypeError("an account changes")

    def __repr__(self) -> str:
        return f"Account({vars(self)})"


def account(data: bytes) -> dict[int, Account]:
    """By channel; heartbeats do not count."""
    found: dict[int, Account] = {}
    open_contents: dict[int, list[Any]] = {}
    frames = AmqpFrames(frame_max=0, is_greeted=True)
    frames.feed(data)
    for frame in frames.frames():
        if frame.kind == FRAME_METHOD:
            channel = found.setdefault(frame.channel, Account())
            entries = channel.add(decode_method(frame.payload, frame.channel))
            if entries is not None:
                open_contents[frame.channel] = entries
        elif frame.kind == FRAME_HEADER:
            open_contents[frame.channel][-1][1] = frame.payload[CONTENT_HEAD.size :]
        elif frame.kind == FRAME_BODY:
            open_contents[frame.channel][-1][2] += frame.payload
    return found


@contextlib.contextmanager
def recording(target: tuple[str, int]) -> Iterator[tuple[int, list[Piece]]]:
    """A link to a broker that keeps everything; its port and the pieces, which grow."""
    pieces: list[Piece] = []
    lock = threading.Lock()
    count = 0

    class Link(BaseRequestHandler):
        def handle(self) -> None:
            nonlocal count
            with lock:
                count += 1
                number = count
            with socket.create_connection(target) as broker:
                back = threading.Thread(target=carry, args=(broker, self.request, number, False))
                back.start()
                carry(self.request, broker, number, True)
                back.join()

    def carry(source: socket.socket, sink: socket.socket, number: int, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                with lock:
                    pieces.append(Piece(number, is_client, data))
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with ThreadingTCPServer(("127.0.0.1", 0), Link) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1], pieces
        finally:
            server.shutdown()
            thread.join()
