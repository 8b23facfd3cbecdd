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
