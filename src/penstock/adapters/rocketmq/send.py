"""Sends: what is checked, what is stored (sheet 1.6).

The order of checks is RocketMQ's: topic name, forbidden topic, topic (made if allowed), queue id,
permission, sizes. Nothing is stored before the last of them.

A message that is not simply stored in its queue (delayed, transactional, to a retry topic) is
offered to ``house.specials`` as a ``Draft``; the first that takes it stores and answers it itself.

Not here: waiting and answering (``send_desk.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.batch_send import send_batch
from penstock.adapters.rocketmq.draft import Draft
from penstock.adapters.rocketmq.replies import Answer, forbidden, no_permission
from penstock.adapters.rocketmq.send_keys import keys_of
from penstock.adapters.rocketmq.storing import Sending
from penstock.adapters.rocketmq.topics import Place
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frames import SendFrame
from penstock.wire.rocketmq.headers import SendHeader, parse_send_header
from penstock.wire.rocketmq.properties import PROPERTIES_BYTES_MAX, span_at
from penstock.wire.rocketmq.stored import stored_record

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.send_desk import SendDesk
    from penstock.adapters.rocketmq.session import Session

_UNIQ: Final = b"UNIQ_KEY\x01"
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class Sender:
    """Turns the sends of one session into publications."""

    def __init__(self, session: Session, desk: SendDesk) -> None:
        house = session.house
        self.session = session
        self._house = house
        self._desk = desk
        self._topics = house.topics
        self._body_bytes_max = house.settings.body_bytes_max
        self._properties_bytes_max = house.settings.properties_bytes_max
        self._cluster = b"CLUSTER\x01" + house.cluster.encode() + b"\x02"

    def prepare(self, send: SendFrame) -> Sending | None:
        """The publication of a send; None when somebody else takes care of it."""
        header = send.header
        name = header.topic
        place = self._topics.find(name)
        if place is None:
            place = self._topics.for_send(header)
        # The usual case is decided here, without a call; the odd ones find their words elsewhere.
        number = header.queue_id
        if not (place.is_writable and 0 <= number < place.queues):
            number = self._queue_number(header, place)
        body = send.body
        text = header.properties
        properties = text.encode()
        if len(body) > self._body_bytes_max or len(properties) > self._properties_bytes_max:
            self.check_sizes(len(body), len(properties))
        if send.code == _BATCH or header.batch:
            self._desk.publish()
            send_batch(self, send, place, number)
            return None
        unique_key, properties = self.complete(properties)
        if "DELAY" in text or "DELIVER" in text or "TRAN_MSG" in text or place.is_retry:
            # What came before it must not come behind it.
            self._desk.publish()
            draft = Draft(self.session, send, place, number, properties, unique_key)
            for special in self._house.specials:
                if special(draft):
                    return None
        record = stored_record(
            name,
            number,
            body,
            properties,
            born_ms=header.born_timestamp,
            born_host=self.session.born_host,
            store_host=self._house.store_host,
            flag=header.flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times,
        )
        return Sending(
            record,
            route=place.routes[number],
            keys=keys_of(properties, unique_key),
            send=None if send.flag & 2 else send,
            queue_number=number,
            unique_key=unique_key,
        )

    def _queue_number(self, header: SendHeader, place: Place) -> int:
        """The queue it asked for, or any; raises ``Answer``."""
        number = header.queue_id
        if place.is_forbidden:
            raise forbidden(place.name)
        if not place.is_writable:
            raise no_permission(f"the topic[{place.name}] sending message is forbidden")
        if number >= place.queues:
            raise Answer(
                self._house.settings.invalid_parameter_code,
                f"request queueId[{number}] is illegal, topic[{place.name}] has "
                f"{place.queues} queues, Producer: {self.session.peer}",
            )
        if number < 0:
            return self._house.random.randrange(max(1, place.config.write_queue_nums))
        return number

    def check_sizes(self, body_bytes: int, properties_bytes: int) -> None:
        """Raise ``Answer`` 13 when a message is too large."""
        if body_bytes > self._body_bytes_max or properties_bytes > self._properties_bytes_max:
            raise Answer(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {self._body_bytes_max}B, msg properties length limit "
                f"{self._properties_bytes_max}B; this one has {body_bytes}B and "
                f"{properties_bytes}B",
            )

    def complete(self, properties: bytes) -> tuple[bytes, bytes]:
        """(unique key, properties with what the broker adds)."""
        at, size = span_at(properties, _UNIQ, properties.rfind(_UNIQ))
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if size:
            unique_key = properties[at : at + size]
            properties += self._cluster
        else:
            unique_key = self._house.unique_keys.make().encode()
            properties = b"%b%b%b\x02%b" % (properties, _UNIQ, unique_key, self._cluster)
        if len(properties) > PROPERTIES_BYTES_MAX:
            self.check_sizes(0, len(properties))
        return unique_key, properties


def serve_send(session: Session, command: Command) -> None:
    """A send in a frame that ``hot_frames`` does not read."""
    send = SendFrame(
        command.code,
        parse_send_header(command),
        command.opaque,
        command.flag,
        command.version,
        command.body,
        command.serialization,
    )
    session.sends.run(send)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.SEND_MESSAGE: serve_send,
    RequestCode.SEND_MESSAGE_V2: serve_send,
    RequestCode.SEND_BATCH_MESSAGE: serve_send,
}
