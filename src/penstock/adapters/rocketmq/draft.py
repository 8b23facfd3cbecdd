"""A send that passed every check and is not stored yet: what the special ways of storing get.

A ``Special`` (delay, timer, transaction, retry topic) returns False to leave the draft alone, or
True when it has taken it: then it stores the message with ``session.sends.store`` and answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.model.record import Record
from penstock.wire.rocketmq.frames import SendFrame, send_answer
from penstock.wire.rocketmq.stored import stored_record

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.session import Session
    from penstock.adapters.rocketmq.storing import Storing
    from penstock.adapters.rocketmq.topics import Place


class Draft(msgspec.Struct):
    """One send on its way."""

    session: Session
    send: SendFrame
    place: Place
    """The topic it names."""
    queue_number: int
    properties: bytes
    """With what the broker adds: UNIQ_KEY and CLUSTER."""
    unique_key: bytes

    def record(
        self,
        topic: str,
        queue_number: int,
        properties: bytes,
        *,
        deliver_ms: int = 0,
        sys_flag: int | None = None,
        reconsume_times: int | None = None,
    ) -> Record:
        """The message for another place, or with other properties."""
        header = self.send.header
        return stored_record(
            topic,
            queue_number,
            self.send.body,
            properties,
            born_ms=header.born_timestamp,
            born_host=self.session.born_host,
            store_host=self.session.house.store_host,
            flag=header.flag,
            sys_flag=header.sys_flag if sys_flag is None else sys_flag,
            reconsume_times=(
                header.reconsume_times if reconsume_times is None else reconsume_times
            ),
            deliver_ms=deliver_ms,
        )

    def answer_stored(self, storing: Storing) -> None:
        """Answer as a plain send is: the place it was stored at."""
        if self.send.is_oneway or self.session.is_closed:
            return
        self.session.write(
            send_answer(
                self.send,
                storing.record.position,
                max(0, storing.offset),
                host_hex=self.session.house.store_host_hex,
                queue_id=self.queue_number,
                unique_key=self.unique_key,
            )
        )


Special = Callable[[Draft], bool]
