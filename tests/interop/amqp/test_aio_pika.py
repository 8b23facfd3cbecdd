"""aio-pika: robust connections, confirms that are awaited, iterators, remote procedure calls."""

import asyncio
import contextlib

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.patterns import RPC


def talk(url, conversation):
    """Run a conversation on a channel with confirms."""

    async def run():
        connection = await aio_pika.connect_robust(url)
        async with connection, asyncio.timeout(30):
            await conversation(await connection.channel())

    asyncio.run(run())


def test_messages_with_headers_come_through_an_iterator(url, name):
    async def conversation(channel):
        queue = await channel.declare_queue(name, durable=True)
        for number in range(20):
            message = Message(
                b"%d" % number,
                headers={"number": number, "list": [1, "two"]},
                delivery_mode=DeliveryMode.PERSISTENT,
            )
            await channel.default_exchange.publish(message, name)
        seen = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    seen.append((message.body, message.headers["number"]))
                if len(seen) == 20:
                    break
        assert seen == [(b"%d" % number, number) for number in range(20)]

    talk(url, conversation)


def test_an_expired_message_tells_where_it_was(url, name):
    async def conversation(channel):
        dead = await channel.declare_exchange(f"{name}-dead", ExchangeType.TOPIC, auto_delete=True)
        grave = await channel.declare_queue(f"{name}-grave", exclusive=True)
        await grave.bind(dead, "#")
        await channel.declare_queue(
            name, arguments={"x-dead-letter-exchange": f"{name}-dead"}, exclusive=True
        )
        await channel.default_exchange.publish(Message(b"late", expiration=0.02), name)
        message = await grave.get(timeout=10, fail=False)
        while message is None:
            message = await grave.get(timeout=10, fail=False)
        assert message.headers["x-death"][0]["original-expiration"] == "20"
        assert message.headers["x-death"][0]["reason"] == "expired"
        assert message.routing_key == name
        await message.ack()

    talk(url, conversation)


def test_a_rejected_publish_raises(url, name):
    async def conversation(channel):
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await channel.declare_queue(name, exclusive=True, arguments=arguments)
        await channel.default_exchange.publish(Message(b"one"), name)
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await channel.default_exchange.publish(Message(b"two"), name)

    talk(url, conversation)


def test_procedures_are_called_and_their_errors_come_back(url, name):
    async def fail(**_):
        raise ValueError("no such luck")

    async def multiply(*, x, y):
        return x * y

    async def conversation(channel):
        rpc = await RPC.create(channel)
        await rpc.register(f"{name}-multiply", multiply, auto_delete=True)
        await rpc.register(f"{name}-fail", fail, auto_delete=True)
        answers = [rpc.call(f"{name}-multiply", {"x": number, "y": 2}) for number in range(10)]
        assert await asyncio.gather(*answers) == [number * 2 for number in range(10)]
        with pytest.raises(ValueError, match="no such luck"):
            await rpc.call(f"{name}-fail", {})
        await rpc.close()

    talk(url, conversation)


def test_a_transaction_commits_all_or_nothing(url, name):
    async def conversation(channel):
        transacted = await channel._connection.channel(publisher_confirms=False)
        queue = await transacted.declare_queue(name, exclusive=True)
        with contextlib.suppress(KeyError):
            async with transacted.transaction():
                await transacted.default_exchange.publish(Message(b"no"), name)
                raise KeyError
        async with transacted.transaction():
            await transacted.default_exchange.publish(Message(b"yes"), name)
        message = await queue.get(timeout=10)
        assert message.body == b"yes"

    talk(url, conversation)


class Link:
    """A way to the broker that can be cut; whoever dials again gets a new one."""

    def __init__(self, address):
        self.cuts = self.dials = 0
        self._address = address
        self._writers = []

    @contextlib.asynccontextmanager
    async def open(self):
        async with await asyncio.start_server(self._carry, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]
            self.cut()

    def cut(self):
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader, writer):
        self.dials += 1
        there, back = await asyncio.open_connection(*self._address)
        self._writers += (writer, back)
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    @staticmethod
    async def _copy(reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


def test_a_robust_consumer_goes_on_after_its_connection_was_cut(url, address, name):
    """Three times; what was not acked comes again, and nothing is missing."""

    async def conversation(channel):
        link = Link(address)
        await channel.declare_queue(name, durable=True)
        async with link.open() as port, asyncio.timeout(25):
            far = f"amqp://guest:guest@127.0.0.1:{port}//?reconnect_interval=0.05"
            connection = await aio_pika.connect_robust(far)
            inner = await connection.channel()
            await inner.set_qos(prefetch_count=2)
            queue = await inner.declare_queue(name, durable=True)
            seen = []

            async def note(message):
                seen.append(message.body)
                with contextlib.suppress(Exception):
                    await message.ack()

            await queue.consume(note)
            for number in range(12):
                await channel.default_exchange.publish(Message(b"%d" % number), name)
                if number % 4 == 1:
                    link.cut()
                elif number % 4 == 3:
                    while len(set(seen)) <= number:
                        await asyncio.sleep(0.01)
            assert link.dials > link.cuts == 3
            await connection.close()
        await channel.queue_delete(name)

    talk(url, conversation)


def test_many_publishers_at_once_are_all_confirmed(url, name):
    async def conversation(channel):
        queue = await channel.declare_queue(name, durable=True)
        publish = channel.default_exchange.publish
        bodies = [b"%d" % number for number in range(200)]
        await asyncio.gather(*(publish(Message(body, delivery_mode=2), name) for body in bodies))
        # Passive ones are answered by the client; declared again it asks.
        state = await channel.declare_queue(name, durable=True)
        assert state.declaration_result.message_count == 200
        assert (await queue.purge()).message_count == 200

    talk(url, conversation)
