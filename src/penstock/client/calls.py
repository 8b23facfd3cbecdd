"""All requests a client makes, one typed coroutine each; what it makes as a client is here.

    calls.query_offset(queue, group)          consumers that pull: ``calls_consume.py``
    calls.pop(address, header, ...)           pop mode: ``calls_pop.py``
    calls.create_topic(address, header)       operators: ``calls_admin.py``

A coroutine raises ``BrokerRefused`` when the answer's code is no success, ``Unreachable``,
``TimedOut`` or ``WouldBlock`` when there is none.

Not here: sends, which go straight through ``Network.start`` (``producer/``).
"""

from penstock.client.calls_admin import AdminCalls
from penstock.wire.rocketmq.bodies import HeartbeatData, encode_body
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.headers import EndTransactionHeader, UnregisterHeader


class Calls(AdminCalls):
    """Every request, of one client."""

    async def heartbeat(
        self, address: str, data: HeartbeatData, *, timeout_ms: int | None = None
    ) -> int:
        """HEART_BEAT; the version of the broker, by which one sees what it can do."""
        answer = await self.ask(
            address, RequestCode.HEART_BEAT, body=encode_body(data), timeout_ms=timeout_ms
        )
        return answer.version

    async def unregister(
        self,
        address: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """UNREGISTER_CLIENT: this client is no longer a member of the group."""
        header = UnregisterHeader(
            client_id=self._client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await self.ask(address, RequestCode.UNREGISTER_CLIENT, header, timeout_ms=timeout_ms)

    def end_transaction(self, address: str, header: EndTransactionHeader) -> None:
        """END_TRANSACTION: commit or roll back a half message; there is no answer."""
        self.tell(address, RequestCode.END_TRANSACTION, header)
