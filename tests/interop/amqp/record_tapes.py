"""Make the tapes of tests/unit/adapters/amqp/tapes: our conversations, real clients, RabbitMQ.

    .venv/bin/python tests/interop/amqp/record_tapes.py [NAME ...]

Needs Debian's rabbitmq-server, and for ``amqplib`` the package that ``test_amqplib.py`` has put
into the cache. Names of queues and consumers are the client's: those that RabbitMQ makes up would
be others in a replay. Nothing here waits for time to pass, because a replay has none.
"""

import asyncio
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import aio_pika
import kombu
import pika

from kit.amqp.rabbitmq import rabbitmq
from kit.amqp.tape import Tape, recording

HERE = Path(__file__).parent
TAPES = HERE.parents[1] / "unit" / "adapters" / "amqp" / "tapes"
MODULES = Path.home() / ".cache" / "penstock" / "amqplib-2.0.1" / "node_modules"


def with_pika(port):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.exchange_declare("tape-pika", "topic")
    channel.queue_declare("tape-pika", durable=True, arguments={"x-max-length": 100})
    channel.queue_bind("tape-pika", "tape-pika", "a.#")
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        delivery_mode=2, content_type="text/plain", headers={"n": 1, "s": "x"}, priority=1
    )
    for body in (b"one", b"two", b"three" * 100, b""):
        channel.basic_publish("tape-pika", "a.b.c", body, properties, mandatory=True)
    for _ in range(2):
        method, _, _ = channel.basic_get("tape-pika")
        channel.basic_nack(method.delivery_tag, requeue=True)
    channel.basic_qos(prefetch_count=1)
    for count, (method, _, _) in enumerate(channel.consume("tape-pika"), 1):
        channel.basic_ack(method.delivery_tag)
        if count == 4:
            break
    channel.cancel()
    other = connection.channel()
    other.tx_select()
    other.basic_publish("", "tape-pika", b"never")
    other.tx_rollback()
    other.basic_publish("", "tape-pika", b"ever")
    other.tx_commit()
    for wrong in (
        lambda its: its.queue_declare("tape-pika", durable=True),
        lambda its: its.queue_declare("tape-nobody", passive=True),
        lambda its: its.exchange_delete("amq.topic"),
    ):
        try:
            wrong(connection.channel())
        except pika.exceptions.ChannelClosedByBroker:
            continue
    other.queue_purge("tape-pika")
    other.queue_delete("tape-pika")
    other.exchange_delete("tape-pika")
    connection.close()


def with_aio_pika(port):
    async def talk():
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
        channel = await connection.channel()
        exchange = await channel.declare_exchange("tape-aio", aio_pika.ExchangeType.FANOUT)
        queue = await channel.declare_queue("tape-aio", exclusive=True)
        await queue.bind(exchange)
        for number in range(5):
            message = aio_pika.Message(b"%d" % number, headers={"number": number})
            await exchange.publish(message, "ignored")
        async with queue.iterator() as messages:
            async for message in messages:
                await message.ack()
                if message.body == b"4":
                    break
        await queue.delete(if_unused=False, if_empty=False)
        await exchange.delete()
        await connection.close()

    asyncio.run(talk())


def with_kombu(port):
    with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{port}//") as connection:
        channel = connection.channel()
        exchange = kombu.Exchange("tape-kombu", "direct", durable=False)
        queue = kombu.Queue("tape-kombu", exchange, "key", durable=False, max_priority=5)
        seen = []
        channel.basic_qos(0, 2, True)
        with kombu.Consumer(channel, queue, callbacks=[lambda body, message: seen.append(message)]):
            producer = kombu.Producer(channel, exchange)
            for number in range(3):
                producer.publish({"number": number}, routing_key="key")
            while len(seen) < 2:
                connection.drain_events(timeout=10)
            seen[0].ack()
            seen[1].reject()
            while len(seen) < 3:
                connection.drain_events(timeout=10)
            seen[2].ack()
        queue(channel).delete()
        exchange(channel).delete()
        channel.close()


def with_amqplib(port):
    subprocess.run(
        ["node", str(HERE / "tape_amqplib.js"), f"amqp://guest:guest@127.0.0.1:{port}"],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        check=True,
    )


CONVERSATIONS = {
    "pika": (with_pika, f"pika {version('pika')}"),
    "aio_pika": (with_aio_pika, f"aio-pika {version('aio-pika')}"),
    "kombu": (with_kombu, f"kombu {version('kombu')}, py-amqp {version('amqp')}"),
    "amqplib": (with_amqplib, "amqplib 2.0.1"),
}


def main():
    TAPES.mkdir(exist_ok=True)
    with rabbitmq() as broker:
        for name in sys.argv[1:] or CONVERSATIONS:
            conversation, client = CONVERSATIONS[name]
            with recording(("127.0.0.1", broker.port)) as (port, pieces):
                conversation(port)
            Tape(f"{client} with RabbitMQ {broker.version}", pieces).save(TAPES / f"{name}.tape")
            print(f"{name}: {len(pieces)} pieces", flush=True)


if __name__ == "__main__":
    main()
