"""The broker's end of ``<data>/bulk.sock``: frames in, questions answered, frames out (D18).

Whoever can open the socket owns the data directory, so there is no login. A link that sends what is
no frame or no question is closed, and only it. At most ``IN_FLIGHT_MAX`` polls of a link are held;
then it is not read until one is answered. Nor is a link that does not read its answers.

Not here: what the answers are (``bulk_answers.py``), who is at the other end (``flight.py``).
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import msgspec

from penstock.bulk import link
from penstock.engine.spark.desk import QueryDesk
from penstock.engine.spark.query import PollAnswer, PollOrder, QueryRefused
from penstock.model.errors import StartRefused
from penstock.server.bulk_answers import answer_of, polled_of

logger = logging.getLogger(__name__)

LINKS_MAX: Final = 64
"""Connections at a time; the Flight process has one."""
PATH_BYTES_MAX: Final = 100
"""A socket's address has room for about so many; deeper directories are reached by handle."""


class BulkLink(asyncio.Protocol):
    """One connection; satisfies ``orders.PollOutlet``."""

    def __init__(self, server: "BulkLinks") -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._held = 0
        self._is_slow = False
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connected."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.joined(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone: what it waits for is dropped."""
        del exc
        self._is_closed = True
        self._server.left(self)

    def data_received(self, data: bytes) -> None:
        """Part of a question, or several."""
        self._buffer += data
        self._serve()

    def pause_writing(self) -> None:
        """It does not read its answers."""
        self._is_slow = True
        self._look()

    def resume_writing(self) -> None:
        """It does again."""
        self._is_slow = False
        self._serve()

    def polled(self, order: PollOrder, answer: PollAnswer | QueryRefused) -> None:
        """A held poll has its answer."""
        self._held -= 1
        if isinstance(answer, QueryRefused):
            self._write(link.encode_problem(order.token, answer.kind, str(answer)))
        else:
            self._write(link.encode_answer(order.token, polled_of(answer)))
        if self._buffer:
            # Not now: the engine is in its turn.
            self._server.loop.call_soon(self._serve)
        self._look()

    def close(self) -> None:
        """Close it once everything written has left."""
        self._is_closed = True
        self._transport.close()

    def _serve(self) -> None:
        """Answer what is complete, as far as there is room for it to wait."""
        try:
            while self._may_serve and (payload := self._next_payload()) is not None:
                self._ask(link.decode_question(payload))
        except (msgspec.MsgspecError, ValueError) as problem:
            logger.warning("a bulk link said what is no question", extra={"why": str(problem)})
            self._is_closed = True
            self._transport.abort()
        except Exception:
            logger.exception("a question of a bulk link could not be answered")
            self._is_closed = True
            self._transport.abort()
        self._look()

    @property
    def _may_serve(self) -> bool:
        return not (self._is_slow or self._is_closed) and self._held < link.IN_FLIGHT_MAX

    def _next_payload(self) -> bytes | None:
        buffer, head = self._buffer, link.LENGTH_BYTES
        if len(buffer) < head:
            return None
        end = head + link.frame_length(bytes(buffer[:head]))
        if len(buffer) < end:
            return None
        payload = bytes(buffer[head:end])
        del buffer[:end]
        return payload

    def _ask(self, question: link.AnyQuestion) -> None:
        try:
            answer = answer_of(question, self._server.desk, self)
        except QueryRefused as refused:
            self._write(link.encode_problem(question.id, refused.kind, str(refused)))
        else:
            if answer is None:
                self._held += 1
            else:
                self._write(link.encode_answer(question.id, answer))
        self._server.asked()

    def _write(self, frame: bytes) -> None:
        if not self._is_closed:
            self._transport.write(frame)

    def _look(self) -> None:
        """Read only while what is read can be served."""
        if self._is_closed:
            return
        if self._may_serve:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


class BulkLinks:
    """The socket and all its connections."""

    def __init__(
        self,
        directory: Path,
        desk: QueryDesk,
        loop: asyncio.AbstractEventLoop,
        asked: Callable[[], None],
    ) -> None:
        self.path: Final = directory / link.SOCKET_NAME
        self.desk: Final = desk
        self.loop: Final = loop
        self.asked: Final = asked
        """Called after each question: it may have changed something that a turn must look at."""
        self._links: set[BulkLink] = set()
        self._socket = _bound(self.path)
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Accept."""
        self._server = await self.loop.create_unix_server(lambda: BulkLink(self), sock=self._socket)

    def stop(self) -> None:
        """Close the socket and every link; the file goes."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for each in list(self._links):
            each.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def joined(self, each: BulkLink) -> bool:
        """A new link; False when there are too many."""
        if len(self._links) >= LINKS_MAX:
            return False
        self._links.add(each)
        return True

    def left(self, each: BulkLink) -> None:
        """A link is gone."""
        self._links.discard(each)
        self.desk.disconnected(each)


def _bound(path: Path) -> socket.socket:
    """A listening socket of this name; one that a killed broker left behind is replaced."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = -1
    try:
        path.unlink(missing_ok=True)
        name = str(path)
        if len(os.fsencode(name)) > PATH_BYTES_MAX:
            handle = os.open(path.parent, os.O_RDONLY)
            name = f"/proc/self/fd/{handle}/{path.name}"
        listening.bind(name)
        path.chmod(0o600)
        listening.listen(LINKS_MAX)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise StartRefused(
            f"socket {path} cannot be made: {error.strerror}; use --data with another path"
        ) from None
    finally:
        if handle >= 0:
            os.close(handle)
    return listening
