"""A small blocking RocketMQ client on a plain socket, for scenes, interop tests and crash tests.

    client = RemotingClient("127.0.0.1", 10911)
    client.send("orders", b"hello", tags="new")
    client.pull("orders").messages

One connection, one thread. Answers are matched by opaque, so several requests may be under way
(``start``, ``wait``); what the server asks of its own accord is kept in ``pushes``. It retries
nothing and keeps no routes: it shows what the broker said, so that others can judge it.

Not here: a client for users (package ``penstock.client``), the bytes (``wire/rocketmq``).
"""

import select
import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Self

from penstock.wire.rocketmq.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionGroupConfig,
    TopicRouteData,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import (
    FLAG_ONEWAY,
    OUR_VERSION,
    Command,
    Language,
    Serialization,
    response_to,
)
from penstock.wire.rocketmq.frames import RemotingFrames, encode
from penstock.wire.rocketmq.headers import (
    AckHeader,
    Header,
    PopAnswer,
    PopHeader,
    PullFlag,
    PullHeader,
    SendHeader,
    SendHeaderV2,
    fields,
    parse,
)
from penstock.wire.rocketmq.pop_handle import PopHandle, RetryFlag, parse_start_offsets
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import StoredMessage, decode_all

READ_BYTES: Final = 1 << 18
WAIT_SECONDS_MAX: Final = 20.0
"""A broker that says nothing for this long is broken; callers fail with a sentence, not a hang."""
PUSHES_MAX: Final = 10_000

Fields = Header | dict[str, str] | None
"""What goes into ``ext``."""


class RemotingResponse:
    """A response, with its parts where readers look for them."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.code = command.code
        self.remark = command.remark or ""
        self.ext = command.ext
        self.body = command.body

    def __repr__(self) -> str:
        return f"Answer({self.code} {self.remark!r} {self.ext} {len(self.body)} B)"

    @property
    def is_ok(self) -> bool:
        return self.code == ResponseCode.SUCCESS

    def number(self, name: str) -> int:
        """A field of ``ext`` that is a number."""
        return int(self.ext[name])

    @property
    def messages(self) -> list[StoredMessage]:
        """The stored messages of the body."""
        return decode_all(self.body)


class RemotingClient:
    """One connection: requests, answers, and what the server asks of its own accord."""

    group = "test-group"
    client_id = "127.0.0.1@test"
    broker_name = "penstock"

    def __init__(
        self,
        host: str,
        port: int,
        *,
        serialization: Serialization = Serialization.JSON,
        language: Language = Language.JAVA,
        version: int = OUR_VERSION,
        dial_seconds_max: float = WAIT_SECONDS_MAX,
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout=dial_seconds_max)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = RemotingFrames()
        self._serialization = serialization
        self._language = language
        self._version = version
        self._opaque = 0
        self._answers: dict[int, RemotingResponse] = {}
        self.pushes: deque[Command] = deque(maxlen=PUSHES_MAX)
        """Requests of the server, oldest first; whoever handles one removes it."""
        self.is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self.is_over = True
        self._socket.close()

    def send_bytes(self, data: bytes) -> None:
        """Raw bytes, for those who mean to break something."""
        self._socket.settimeout(WAIT_SECONDS_MAX)
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.is_over = True
            raise ConnectionError(f"the broker hung up: {error}") from None

    def start(
        self,
        code: int,
        ext: Fields = None,
        body: bytes = b"",
        flag: int = 0,
    ) -> int:
        """Send a request and return its opaque; ``wait`` takes the answer."""
        self._opaque += 1
        named = fields(ext) if isinstance(ext, Header) else dict(ext or {})
        command = Command(
            int(code), named, body, self._opaque, flag, None, int(self._language), self._version,
            int(self._serialization),
        )  # fmt: skip
        self.send_bytes(encode(command))
        return self._opaque

    def oneway(self, code: int, ext: Fields = None, body: bytes = b"") -> int:
        """Send a request that must not be answered."""
        return self.start(code, ext, body, FLAG_ONEWAY)

    def request(
        self,
        code: int,
        ext: Fields = None,
        body: bytes = b"",
        *,
        seconds_max: float = WAIT_SECONDS_MAX,
    ) -> RemotingResponse:
        """Send a request and wait for its answer."""
        return self.wait(self.start(code, ext, body), seconds_max)

    def wait(self, opaque: int, seconds_max: float = WAIT_SECONDS_MAX) -> RemotingResponse:
        """The answer to a started request; ``TimeoutError`` when it does not come."""
        until = time.monotonic() + seconds_max
        while opaque not in self._answers:
            self._read_until(until, f"answer to request {opaque}")
        return self._answers.pop(opaque)

    def has_answer(self, opaque: int, seconds_max: float = 0.0) -> bool:
        """Whether the answer is there, or comes in time; it is not taken."""
        try:
            until = time.monotonic() + seconds_max
            while opaque not in self._answers:
                self._read_until(until, "")
        except TimeoutError:
            return False
        return True

    def take_answers(self, opaques: Iterable[int]) -> dict[int, RemotingResponse]:
        """Those of these answers that are there; reads what came, never waits."""
        while not self.is_over and select.select([self._socket], [], [], 0)[0]:
            self._read_until(0.0, "")
        return {each: self._answers.pop(each) for each in opaques if each in self._answers}

    def wait_push(self, code: int, seconds_max: float = WAIT_SECONDS_MAX) -> Command:
        """The oldest request of the server with this code, taken out of ``pushes``."""
        until = time.monotonic() + seconds_max
        while True:
            for push in self.pushes:
                if push.code == code:
                    self.pushes.remove(push)
                    return push
            self._read_until(until, f"server request {int(code)}")

    def reply(self, push: Command, code: int = 0, *, body: bytes = b"", remark: str = "") -> None:
        """Answer a request of the server."""
        self.send_bytes(encode(response_to(push, code, body=body, remark=remark or None)))

    def wait_closed(self, seconds_max: float = WAIT_SECONDS_MAX) -> None:
        """Until the broker hangs up; ``TimeoutError`` when it does not."""
        until = time.monotonic() + seconds_max
        while not self.is_over:
            try:
                self._read_until(until, "the end of the connection")
            except ConnectionError:
                return

    def _read_until(self, until: float, what: str) -> None:
        """Read once; ``TimeoutError`` past the time, ``ConnectionError`` at the end."""
        left = until - time.monotonic()
        if self.is_over:
            raise ConnectionError(f"the broker hung up while {what} was awaited")
        if not select.select([self._socket], [], [], max(left, 0))[0]:
            raise TimeoutError(f"no {what} in time")
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.is_over = True
            return
        self._frames.feed(data)
        for command in self._frames.commands():
            if command.is_response:
                self._answers[command.opaque] = RemotingResponse(command)
            else:
                self.pushes.append(command)

    # The requests that tests and scenes make most, each as one call.

    def start_send(
        self,
        topic: str,
        body: bytes = b"",
        *,
        queue_id: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        properties: dict[str, str] | None = None,
        tags: str = "",
        keys: str = "",
        flag: int = 0,
        **header: Any,
    ) -> int:
        """Start a send; ``header`` are further fields of ``SendHeader``."""
        named = {**(properties or {}), "TAGS": tags, "KEYS": keys}
        header |= {
            "topic": topic,
            "queue_id": queue_id,
            "properties": format_properties(named).decode(),
        }
        header.setdefault("default_topic", "TBW102")
        header.setdefault("producer_group", "test-producers")
        header.setdefault("born_timestamp", int(time.time() * 1000))
        is_v1 = code == RequestCode.SEND_MESSAGE
        ext = SendHeader(**header) if is_v1 else SendHeaderV2(**header)
        return self.start(code, ext, body, flag)

    def send(self, topic: str, body: bytes = b"", **options: Any) -> RemotingResponse:
        """Send one message and wait for the answer."""
        return self.wait(self.start_send(topic, body, **options))

    def start_pull(
        self, topic: str, queue_id: int = 0, offset: int = 0, *, hold_ms: int = 0, **header: Any
    ) -> int:
        """Start a pull; with ``hold_ms`` it may be held. The subscription is sent along."""
        header.setdefault("consumer_group", self.group)
        header.setdefault("subscription", "*")
        header.setdefault("expression_type", "TAG")
        flags = PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if hold_ms else 0)
        header.setdefault("sys_flag", int(flags))
        ext = PullHeader(
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            suspend_timeout_millis=hold_ms,
            **header,
        )
        return self.start(RequestCode.PULL_MESSAGE, ext)

    def pull(
        self, topic: str, queue_id: int = 0, offset: int = 0, **options: Any
    ) -> RemotingResponse:
        """Pull once and wait for the answer."""
        return self.wait(self.start_pull(topic, queue_id, offset, **options))

    def heartbeat(
        self, *consumers: ConsumerData, producers: tuple[str, ...] = (), client_id: str = ""
    ) -> RemotingResponse:
        data = HeartbeatData(
            client_id=client_id or self.client_id,
            producer_data_set=[ProducerData(group_name=name) for name in producers],
            consumer_data_set=list(consumers),
        )
        return self.request(RequestCode.HEART_BEAT, body=encode_body(data))

    def start_pop(self, topic: str, *, poll_ms: int = 0, **header: Any) -> int:
        """Start a pop; with ``poll_ms`` it may be held."""
        header.setdefault("consumer_group", self.group)
        header.setdefault("born_time", int(time.time() * 1000))
        ext = PopHeader(topic=topic, poll_time=poll_ms, **header)
        return self.start(RequestCode.POP_MESSAGE, ext)

    def pop(self, topic: str, **options: Any) -> RemotingResponse:
        """Pop once and wait for the answer."""
        return self.wait(self.start_pop(topic, **options))

    def popped(self, answer: RemotingResponse) -> list[tuple[StoredMessage, str]]:
        """The messages of a pop, each with its handle, put together as clients do it."""
        if not answer.is_ok:
            return []
        header = parse(PopAnswer, answer.command)
        starts = parse_start_offsets(header.start_offset_info or "")
        found = []
        for message in answer.messages:
            # The queue is of the retry topic when the message is.
            flag = RetryFlag.RETRY_V1 if message.topic.startswith("%RETRY%") else RetryFlag.NORMAL
            handle = PopHandle(
                start_offset=starts[flag, message.queue_id],
                pop_time=header.pop_time,
                invisible_time=header.invisible_time,
                revive_qid=header.revive_qid,
                retry_flag=flag,
                broker_name=self.broker_name,
                queue_id=message.queue_id,
                offset=message.queue_offset,
            )
            found.append((message, str(handle)))
        return found

    def ack(
        self, topic: str, message: StoredMessage, handle: str, group: str = ""
    ) -> RemotingResponse:
        ext = AckHeader(
            consumer_group=group or self.group,
            topic=topic,
            queue_id=message.queue_id,
            extra_info=handle,
            offset=message.queue_offset,
        )
        return self.request(RequestCode.ACK_MESSAGE, ext)

    def create_topic(self, topic: str, queues: int = 4, perm: int = 6) -> RemotingResponse:
        numbers = {"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": str(perm)}
        return self.request(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", **numbers},
        )

    def create_group(self, group: str, **switches: Any) -> RemotingResponse:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        config = SubscriptionGroupConfig(group_name=group, **switches)
        return self.request(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config)
        )

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic, asked of a name server; None when it has none."""
        answer = self.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return decode_body(answer.body, TopicRouteData) if answer.is_ok else None

    def offset(self, code: int, topic: str, queue_id: int = 0, **more: str) -> RemotingResponse:
        """Any of the requests whose answer is one offset."""
        return self.request(code, {"topic": topic, "queueId": str(queue_id), **more})
