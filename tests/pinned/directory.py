"""A data directory with something of everything, and a script that reads all of it again."""

import tarfile

from amqp_scripts import FULL, KINDS, PERSISTENT, with_headers
from clients import amqp_client, rocketmq_client
from rocketmq_scripts import GROUP, create_group, create_topic, pull_header, send_back

from kit.amqp.management_tool import ManagementTool
from kit.pin_bench import SMALL, PinBench
from kit.rocketmq.bench import BenchConsumer, BenchProducer, Popper, position_of
from penstock.wire.amqp.methods.basic import Ack, Get, GetOk, Nack
from penstock.wire.amqp.methods.channel import Close, CloseOk, ConfirmSelect
from penstock.wire.amqp.methods.exchange import Bind as BindExchange
from penstock.wire.amqp.methods.exchange import Declare as DeclareExchange
from penstock.wire.amqp.methods.queue import Bind, Declare
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.rocketmq.codes import RequestCode

HOUR = 3_600_000
QUEUES = {
    "orders": {},
    "rejecting": {"x-dead-letter-exchange": "x-fanout", "x-dead-letter-routing-key": "late"},
    "expiring": {"x-dead-letter-exchange": "x-fanout", "x-message-ttl": 1000},
    "dead": {},
    "ranked": {"x-max-priority": 4},
    "bounded": {"x-max-length": 3, "x-overflow": "drop-head"},
    "bytes": {"x-max-length-bytes": 100_000, "x-overflow": "reject-publish"},
    "single": {"x-single-active-consumer": True},
}


def pack(directory, path):
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for each in sorted(directory.rglob("*")):
            archive.add(each, str(each.relative_to(directory)), recursive=False, filter=nobodys)


def nobodys(row):
    """Not the files of whoever records."""
    row.uid = row.gid = row.mtime = 0
    row.uname = row.gname = ""
    return row


def write(directory, killed, stopped):
    """Fill a directory; one archive is made while the broker lives, one after it stopped."""
    bench = PinBench(directory, SMALL)
    with_amqp(bench)
    with_rocketmq(bench)
    bench.pass_time(60_000)
    # Nothing of this is in a snapshot yet: after a kill it is read from the log.
    peer = amqp_client(bench, 9)
    for number in range(5):
        peer.publish(1, "", "orders", b"last %d" % number, PERSISTENT)
    for _ in range(4):
        peer.call(1, Get(0, "orders", False))
    peer.send(1, Ack(2))
    peer.send(1, Ack(4))
    peer.call(1, Declare(queue="newest", is_durable=True))
    client = rocketmq_client(bench, 9, BenchConsumer)
    client.send("events", b"last", KEYS="last", queue=1)
    client.send("events", b"very late", DELAY="17")
    client.commit("events", 2, 1)
    bench.settle()
    pack(directory, killed)
    bench.close()
    pack(directory, stopped)


def with_amqp(bench):
    tool = ManagementTool(bench)
    tool("PUT", "/api/vhosts/blue")
    tool("PUT", "/api/users/ann", {"password": "secret", "tags": "monitoring"})
    peer = amqp_client(bench, 1)
    for kind in KINDS:
        more = {"alternate-exchange": "x-fanout"} if kind == "direct" else {}
        order = DeclareExchange(exchange=f"x-{kind}", kind=kind, is_durable=True, arguments=more)
        peer.call(1, order)
    for name, arguments in QUEUES.items():
        peer.call(1, Declare(queue=name, is_durable=True, arguments=arguments))
    peer.call(1, Declare(queue="transient"))
    peer.call(1, Bind(0, "orders", "x-direct", "k"))
    peer.call(1, Bind(0, "orders", "x-topic", "a.*"))
    peer.call(1, Bind(0, "ranked", "x-headers", "", arguments={"x-match": "all", "n": 1}))
    peer.call(1, Bind(0, "dead", "x-fanout", ""))
    peer.call(1, BindExchange(0, "x-topic", "x-direct", "a.b"))
    peer.call(1, ConfirmSelect())
    for number in range(20):
        peer.publish(1, "x-direct", "k", b"order %d" % number, FULL)
    peer.publish(1, "x-direct", "a.b", b"through two exchanges", PERSISTENT)
    peer.publish(1, "x-direct", "unrouted", b"by the alternate", PERSISTENT)
    for number in range(5):
        peer.publish(1, "", "bounded", b"bounded %d" % number, PERSISTENT)
        ranked = encode_properties(Properties(delivery_mode=2, priority=number))
        peer.publish(1, "", "ranked", b"ranked %d" % number, ranked)
    peer.publish(1, "x-headers", "", b"by headers", with_headers(n=1))
    peer.publish(1, "", "orders", b"transient message")
    peer.publish(1, "", "transient", b"lost at a restart")
    expiring = encode_properties(Properties(delivery_mode=2, expiration=str(HOUR)))
    peer.publish(1, "", "single", b"expires in an hour", expiring)
    for name in ("rejecting", "expiring"):
        peer.publish(1, "", name, b"one " + name.encode(), FULL)
        peer.publish(1, "", name, b"two " + name.encode(), PERSISTENT)
    for number in range(40):
        peer.publish(1, "", "bytes", b"%d " % number * 500, PERSISTENT)
        peer.turn()
    peer.call(1, Get(0, "rejecting", False))
    peer.send(1, Nack(1, False, False))
    bench.pass_time(2_000)
    for _ in range(10):
        peer.call(1, Get(0, "orders", False))
    for tag in (2, 3, 6, 8, 9):
        peer.send(1, Ack(tag))
    peer.send(1, Nack(5, False, True))
    other = amqp_client(bench, 2, vhost="blue")
    other.call(1, Declare(queue="orders", is_durable=True))
    other.publish(1, "", "orders", b"in another vhost", PERSISTENT)
    other.session.closed("")


def with_rocketmq(bench):
    client = rocketmq_client(bench, 1, BenchConsumer)
    create_topic(client, "events", 3, attributes="+message.type=MIXED")
    create_topic(client, "popped", 2)
    create_group(client, retryMaxTimes=3)
    client.heartbeat(GROUP, events="*")
    for number in range(12):
        body = b"event %d" % number
        sent = client.send("events", body, queue=number % 3, KEYS=f"k{number % 4}", TAGS="red")
        client.send("popped", b"pop %d" % number, queue=number % 2)
    client.commit("events", 3)
    client.commit("events", 1, 2)
    send_back(client, position_of(sent))
    send_back(client, position_of(sent), -1)
    bench.pass_time(11_000)
    send_back(client, position_of(sent), 10)
    client.send("events", b"in two hours", DELAY="18", KEYS="late")
    client.send("events", b"in one hour", TIMER_DELAY_SEC="3600")
    popper = rocketmq_client(bench, 2, Popper)
    popper.topic = "popped"
    popped = popper.pop(queue=0, messages=5, invisible_time=HOUR).messages
    popper.ack(popped[1])
    popper.ack(popped[3])
    producer = rocketmq_client(bench, 3, BenchProducer)
    producer.join_producers()
    create_topic(producer, "orders")
    producer.send_half(b"half", KEYS="half")


def read(bench):
    """Everything a client can be told, also what only time brings."""
    for number, (vhost, names) in enumerate(
        (("/", [*QUEUES, "newest", "transient"]), ("blue", ["orders"])), 1
    ):
        peer = amqp_client(bench, number, vhost=vhost)
        for name in names:
            answer = peer.call(1, Get(0, name, False))
            while isinstance(answer, GetOk):
                answer = peer.call(1, Get(0, name, False))
            if isinstance(answer, Close):
                peer.send(1, CloseOk())
                peer.open(1)
    client = rocketmq_client(bench, 1, BenchConsumer)
    client.heartbeat(GROUP, events="*")
    ask_all(bench, client)
    popper = rocketmq_client(bench, 2, Popper)
    popper.topic = "popped"
    popper.pop()
    producer = rocketmq_client(bench, 3, BenchProducer)
    producer.join_producers()
    bench.pass_time(HOUR + 60_000)
    client.heartbeat(GROUP, events="*")
    popper.pop()
    bench.pass_time(HOUR)
    ask_all(bench, client)


def ask_all(bench, client):
    topics = {"events": 3, "popped": 2, f"%RETRY%{GROUP}": 1, f"%DLQ%{GROUP}": 1, "orders": 2}
    for topic, queues in topics.items():
        client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        for queue in range(queues):
            client.ask(RequestCode.PULL_MESSAGE, pull_header(topic, queue))
            client.query(topic, queue)
    for key in ("k0", "k3", "late", "last", "half"):
        span = {"beginTimestamp": "0", "endTimestamp": str(1 << 62), "maxNum": "20"}
        client.ask(RequestCode.QUERY_MESSAGE, {"topic": "events", "key": key, **span})
    client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP})
