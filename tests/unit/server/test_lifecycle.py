"""A whole broker in this process, spoken to over sockets in the line protocol."""

import asyncio
import contextlib
import errno
import io
import json
import socket
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from kit.line_protocol import LineFactory
from kit.rocketmq.clusters import free_ports
from penstock.engine.flow_map import FLOW_TOPIC
from penstock.log.storage import DiskFile
from penstock.model.errors import InvariantBroken, StartRefused, SyncFailed
from penstock.model.ids import size_text
from penstock.server.faults import FaultOrder
from penstock.server.lifecycle import (
    Broker,
    ResourceLimits,
    amber_marks,
    banner_lines,
    print_banner,
)
from penstock.server.protocols import HttpPort, ProtocolBinding
from penstock.settings.broker import BrokerSettings, ListenerSettings, StorageSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frames import decode, encode

WAIT_SECONDS_MAX = 20


class Client:
    """Says lines and waits for answers."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self.unheard = []

    def say(self, *lines):
        self.writer.write("".join(f"{line}\n" for line in lines).encode())

    async def hear(self, *words):
        """The next line that begins with these words; others wait for their turn."""
        for at, heard in enumerate(self.unheard):
            if heard[: len(words)] == list(words):
                return self.unheard.pop(at)
        while True:
            line = await asyncio.wait_for(self.reader.readline(), WAIT_SECONDS_MAX)
            assert line, f"connection ended while waiting for {words}"
            heard = line.decode().split()
            if heard[: len(words)] == list(words):
                return heard
            self.unheard.append(heard)

    async def ask(self, line, *answer):
        self.say(line)
        return await self.hear(*answer)

    async def close(self):
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class House:
    """A broker on a directory and its clients."""

    def __init__(self, directory, **more):
        protocols = more.pop("protocols", [ProtocolBinding(LineFactory(), 0)])
        self.settings = Settings(
            broker=BrokerSettings(data=str(directory), faults=True, stop_ms_max=5000),
            flow=more.pop("flow", FlowSettings(disk_free_limit="1KiB")),
            listeners=ListenerSettings(http="0", **more),
        )
        self.broker = Broker(self.settings, protocols=protocols)
        self.clients = []

    async def connect(self):
        host, port = self.broker.endpoints["line"].rsplit(":", 1)
        self.clients.append(Client(*await asyncio.open_connection(host, int(port))))
        return self.clients[-1]

    async def leave(self):
        for client in self.clients:
            await client.close()
        await self.broker.stop()

    async def get(self, path, listener="http"):
        host, port = self.broker.endpoints[listener].rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        )
        answer = await asyncio.wait_for(reader.read(), WAIT_SECONDS_MAX)
        writer.close()
        return answer.decode()

    def order(self, fault, **more):
        self.broker.faults.order(FaultOrder(fault, **more))


@pytest.fixture
def in_house(tmp_path):
    """Runs a scene in a started broker and stops it afterwards."""

    def run(scene, **more):
        async def play():
            house = House(tmp_path / "data", **more)
            await house.broker.start()
            try:
                return await scene(house)
            finally:
                await house.leave()

        return asyncio.run(play())

    return run


def speaking(path, made=None):
    """What makes the route of a protocol: it says which listeners there are."""

    def make(wake, endpoints):
        async def answer(_request):
            wake()
            return PlainTextResponse(" ".join(sorted(endpoints)))

        if made is not None:
            made.append(path)
        return [Route(path, answer)]

    return make


def test_a_protocol_brings_its_own_http_paths_and_a_port_of_its_own(in_house):
    made = []
    binding = ProtocolBinding(
        LineFactory(),
        0,
        routes=speaking("/api/lines", made),
        http=HttpPort("line_http", 0, speaking("/admin/lines", made)),
    )

    async def scene(house):
        assert made == [], "nobody asked yet"
        ways = [("/api/lines", "http"), ("/admin/lines", "line_http")]
        served = [await house.get(path, listener) for path, listener in ways]
        others = [
            ("/admin/lines", "http"),
            ("/api/lines", "line_http"),
            ("/api/topics", "line_http"),
        ]
        return (
            served,
            [await house.get(*each) for each in others],
            await house.get("/readyz", "line_http"),
        )

    served, missing, health = in_house(scene, protocols=[binding])
    assert [answer.splitlines()[-1] for answer in served] == ["http line line_http"] * 2
    assert all(answer.startswith("HTTP/1.1 404") for answer in missing)
    assert health.startswith("HTTP/1.1 200")


def test_a_protocols_http_port_that_is_taken_stops_the_start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        http = HttpPort("line_http", port, speaking("/admin/lines"))
        house = House(tmp_path / "data", protocols=[ProtocolBinding(LineFactory(), 0, http=http)])
        with pytest.raises(StartRefused, match="line_http"):
            asyncio.run(house.broker.start())


def test_a_publish_is_confirmed_and_delivered(in_house):
    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC", "orders")
        await client.ask("SUB orders s 10", "SUB", "orders", "s")
        confirm = await client.ask("PUB orders 7 hello", "CONFIRM", "7")
        message = await client.hear("MSG", "orders", "s")
        return confirm[3], message[-1]

    assert in_house(scene) == ("0", "hello")


def test_what_was_confirmed_is_there_after_a_clean_stop(in_house):
    async def publish(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC", "orders")
        client.say(*[f"PUB orders {number} m{number}" for number in range(100)])
        await client.hear("CONFIRM", "99")

    async def consume(house):
        client = await house.connect()
        await client.ask("SUB orders s 1000", "SUB")
        return [(await client.hear("MSG"))[-1] for _ in range(100)]

    in_house(publish)
    assert in_house(consume) == [f"m{number}" for number in range(100)]


def test_a_stopping_broker_says_goodbye_to_its_peers(tmp_path):
    async def play():
        house = House(tmp_path / "data")
        await house.broker.start()
        client = await house.connect()
        await client.ask("PING x", "PONG", "x")
        await house.broker.stop()
        goodbye = await client.hear("ERROR")
        await client.close()
        return goodbye

    assert asyncio.run(play())[1:] == ["the", "broker", "is", "stopping"]


def test_what_was_received_before_a_stop_is_confirmed_before_the_goodbye(tmp_path):
    async def play():
        house = House(tmp_path / "data")
        await house.broker.start()
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        house.order("store-hold", ms=200)
        client.say("PUB orders 1 a")
        await client.ask("PING x", "PONG")
        await house.broker.stop()
        heard = [await client.hear("CONFIRM", "1"), await client.hear("ERROR")]
        await client.close()
        return [words[0] for words in heard], client.unheard

    assert asyncio.run(play()) == (["CONFIRM", "ERROR"], [])


def test_confirms_wait_while_the_store_is_held_and_http_does_not(in_house):
    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        house.order("store-hold", ms=60_000)
        client.say("PUB orders 1 a")
        await client.ask("PING x", "PONG")
        answer = await house.get("/api/flow")
        metrics = await house.get("/metrics")
        unsynced = house.broker.engine.unsynced_messages
        house.order("clear")
        await client.hear("CONFIRM", "1")
        return answer, metrics, unsynced

    answer, metrics, unsynced = in_house(scene)
    assert answer.startswith("HTTP/1.1 200")
    assert "penstock_unsynced_messages 1.0" in metrics
    assert 'penstock_flow_credit{hop="queue_log"} 3999.0' in metrics
    assert unsynced == 1


def test_a_write_that_the_disk_refuses_is_refused_to_the_publisher_and_the_next_one_taken(in_house):
    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        house.order("write-error", count=1)
        refused = await client.ask("PUB orders 1 a", "REFUSED", "1")
        confirmed = await client.ask("PUB orders 2 b", "CONFIRM", "2")
        return refused[2], confirmed[3]

    assert in_house(scene) == ("write-failed", "0")


def test_a_failed_sync_is_told_to_the_publisher_and_ends_the_broker(in_house, monkeypatch, caplog):
    def fail(self):
        raise OSError(errno.EIO, "Input/output error")

    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        monkeypatch.setattr(DiskFile, "sync", fail)
        refused = await client.ask("PUB orders 1 a", "REFUSED", "1")
        with pytest.raises(SyncFailed):
            await asyncio.wait_for(house.broker.wait(), WAIT_SECONDS_MAX)
        return refused[2]

    assert in_house(scene) == "sync-failed"


def test_a_mistake_of_the_engine_ends_the_broker_without_a_last_snapshot(
    in_house, monkeypatch, caplog
):
    def broken():
        raise InvariantBroken("credit is negative")

    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        monkeypatch.setattr(house.broker.engine, "turn", broken)
        client.say("PUB orders 1 a")
        with pytest.raises(InvariantBroken):
            await asyncio.wait_for(house.broker.wait(), WAIT_SECONDS_MAX)

    in_house(scene)
    assert "without a last snapshot" in caplog.text
    assert "credit is negative" in caplog.text


def test_a_full_disk_blocks_publishers_by_name_until_there_is_room(in_house):
    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        await client.ask("PUB orders 1 a", "CONFIRM", "1")
        house.order("disk", bytes=0)
        client.say("PUB orders 2 b")
        blocked = await client.hear("BLOCKED")
        await client.ask("PING x", "PONG")
        house.order("clear")
        await client.hear("UNBLOCKED")
        await client.hear("CONFIRM", "2")
        return blocked[1]

    assert in_house(scene) == "disk"


def test_a_stop_says_how_many_held_publishes_of_closed_channels_it_loses(in_house, caplog):
    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        house.order("disk", bytes=0)
        client.say("PUB orders 1 a")
        await client.hear("BLOCKED")
        (connection,) = house.broker.engine.connections
        connection.close()

    in_house(scene)
    assert [record.messages for record in caplog.records if "lost by the stop" in record.msg] == [1]


def test_an_alarm_is_one_line_in_the_log_when_raised_and_one_when_cleared(in_house, caplog):
    caplog.set_level("INFO")

    async def scene(house):
        for _ in range(3):
            house.order("memory", bytes=1 << 50)
        house.order("clear")

    in_house(scene)
    told = [record.message for record in caplog.records if hasattr(record, "alarm")]
    assert told == ["alarm raised, publishers wait", "alarm cleared"]


def test_a_delayed_queue_holds_only_its_own_publishers(in_house):
    async def scene(house):
        slow, quick = await house.connect(), await house.connect()
        await slow.ask("TOPIC slow", "TOPIC")
        await quick.ask("TOPIC quick", "TOPIC")
        house.order("queue-delay", topic="slow", ms=60_000)
        slow.say("PUB slow 1 a")
        await quick.ask("PUB quick 1 b", "CONFIRM", "1")
        waiting = house.broker.engine.statistics().topics[0].messages_in
        house.order("clear")
        await slow.hear("CONFIRM", "1")
        return waiting

    assert in_house(scene) == 0


def test_a_peer_that_does_not_read_stops_only_itself(in_house):
    async def scene(house):
        publisher, stuck, quick = [await house.connect() for _ in range(3)]
        await publisher.ask("TOPIC orders", "TOPIC")
        await stuck.ask("SUB orders stuck 100000", "SUB")
        await quick.ask("SUB orders quick 100000", "SUB")
        stuck.reader._transport.pause_reading()
        body = "x" * 20_000
        count = 1500
        for number in range(count):
            publisher.say(f"PUB orders {number} {body}")
        seen = [await quick.hear("MSG") for _ in range(count)]
        await publisher.hear("CONFIRM", str(count - 1))
        topic = house.broker.engine.topics()[0]
        unacked = topic.subscriptions["stuck"].statistics().unacked
        return len(seen), unacked

    seen, unacked = in_house(scene)
    assert seen == 1500
    assert unacked < 1500, "the socket of the stuck peer cannot have taken 30 MB"


def test_more_peers_than_places_are_turned_away_and_counted(in_house):
    async def scene(house):
        first = await house.connect()
        await first.ask("PING x", "PONG")
        second = await house.connect()
        ending = await asyncio.wait_for(second.reader.read(), WAIT_SECONDS_MAX)
        metrics = await house.get("/metrics")
        return ending, metrics

    ending, metrics = in_house(scene, connections_max=1)
    assert ending == b""
    assert 'penstock_connections_refused_total{reason="too many connections"} 1.0' in metrics


def test_a_start_that_fails_half_way_leaves_nothing_behind(tmp_path):
    async def play():
        broken = Settings(
            broker=BrokerSettings(data=str(tmp_path / "data"), ready_file=str(tmp_path / "no/x")),
            listeners=ListenerSettings(
                http="0", rocketmq="0", rocketmq_broker="0", amqp="0", pulsar="0", flight="0"
            ),
        )
        with pytest.raises(StartRefused, match="--ready-file"):
            await Broker(broken).start()
        house = House(tmp_path / "data")
        await house.broker.start()
        await house.broker.stop()

    asyncio.run(play())
    assert not (tmp_path / "data" / "ready.json").exists()


def rocketmq_house(directory, port):
    return Broker(
        Settings(
            broker=BrokerSettings(data=str(directory)),
            listeners=ListenerSettings(
                bind="127.0.0.1", http="0", rocketmq="0", rocketmq_broker=str(port), amqp="off",
                pulsar="off", flight="off",
            ),
        )
    )  # fmt: skip


def test_the_vip_channel_answers_as_the_brokers_port_does(tmp_path):
    async def play():
        (port,) = free_ports(1)
        broker = rocketmq_house(tmp_path / "data", port)
        await broker.start()
        try:
            assert broker.endpoints["rocketmq_vip"] == f"127.0.0.1:{port - 2}"
            reader, writer = await asyncio.open_connection("127.0.0.1", port - 2)
            fields = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0"}
            fields |= {"g": "1", "h": "0", "i": "", "j": "0"}
            writer.write(encode(Command(310, fields, b"body", opaque=7)))
            size = await asyncio.wait_for(reader.readexactly(4), WAIT_SECONDS_MAX)
            rest = await asyncio.wait_for(
                reader.readexactly(int.from_bytes(size, "big")), WAIT_SECONDS_MAX
            )
            writer.close()
            return decode(size + rest)
        finally:
            await broker.stop()

    answer = asyncio.run(play())
    assert (answer.code, answer.opaque) == (0, 7)


def test_a_taken_vip_port_is_a_line_in_the_log_and_no_reason_not_to_start(tmp_path, caplog):
    async def play():
        (port,) = free_ports(1)
        with socket.socket() as other:
            other.bind(("127.0.0.1", port - 2))
            other.listen()
            broker = rocketmq_house(tmp_path / "data", port)
            await broker.start()
            endpoints = dict(broker.endpoints)
            await broker.stop()
        return port, endpoints

    port, endpoints = asyncio.run(play())
    assert endpoints["rocketmq_broker"] == f"127.0.0.1:{port}"
    assert "rocketmq_vip" not in endpoints
    assert f"listener rocketmq_vip is absent, port {port - 2} is taken" in caplog.text


def test_the_edges_of_flow_control_can_be_consumed_as_messages(in_house):
    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        await client.ask("PUB orders 1 a", "CONFIRM", "1")
        house.order("disk", bytes=0)
        client.say("PUB orders 2 b")
        await client.hear("BLOCKED")
        house.order("disk", bytes=1 << 40)
        await client.hear("UNBLOCKED")
        engine = house.broker.engine
        while engine.flow_topic.appended == 0:
            house.broker._running.view.take_events()
            await asyncio.sleep(0.01)
        index = engine.topic(FLOW_TOPIC).queues[0].index
        (entry, *_) = index.entries(0, 1)
        (record,) = engine._store.read([(entry[0], entry[4])])
        return json.loads(record.body)

    event = in_house(scene)
    assert (event["event"], event["kind"], event["reason"]) == ("entered", "alarm", "disk")


def test_flow_control_shows_in_the_flow_map_with_a_culprit(in_house):
    async def scene(house):
        client = await house.connect()
        await client.ask("TOPIC orders", "TOPIC")
        await client.ask("PUB orders 1 a", "CONFIRM", "1")
        house.order("disk", bytes=0)
        client.say("PUB orders 2 b")
        await client.hear("BLOCKED")
        await client.ask("PING x", "PONG")
        return json.loads(await house.broker._running.view.flow_page())

    page = in_house(scene)
    held = [stage for stage in page["stages"] if stage["reason"] == "disk"]
    assert held
    assert "disk alarm" in page["diagnosis"]["sentence"]
    assert any(limit["is_reached"] for limit in page["limits"])


def test_every_event_that_nobody_heard_of_is_in_the_metrics(in_house):
    async def scene(house):
        view = house.broker._running.view
        view._engine._chain.journal.edges_dropped = 4
        view._engine.flow_topic.dropped = 3
        return b"".join(await view.metrics_page()).decode()

    assert 'penstock_flow_events_total{outcome="dropped"} 7' in in_house(scene)


# ---- banner -------------------------------------------------------------------------------------
# The banner: endpoints, limits, and amber marks for weakened promises.


GIB = 1 << 30
FIGURES = ResourceLimits(20 * GIB, 12 * GIB, 100 * GIB, GIB)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (16 << 20, "16 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes_read_well(count, text):
    assert size_text(count) == text


def test_endpoints_and_limits_are_shown():
    text = "\n".join(
        banner_lines(Settings(), Path("d"), {"http": "127.0.0.1:1"}, FIGURES, start_seconds=0.3)
    )
    for part in ("http://127.0.0.1:1", "12 GiB of 20 GiB", "1 GiB free", "256 MiB", "5 of 16 MiB"):
        assert part in text


def test_what_is_shown_of_a_listener_can_be_given_to_its_clients():
    ports = {"amqp": "127.0.0.1:1", "pulsar": "127.0.0.1:2", "pulsar_http": "127.0.0.1:3"}
    lines = banner_lines(Settings(), Path("d"), ports, FIGURES, start_seconds=0.3)
    assert [line.split() for line in lines[1:4]] == [
        ["amqp", "amqp://guest:guest@127.0.0.1:1"],
        ["pulsar", "pulsar://127.0.0.1:2"],
        ["pulsar_http", "http://127.0.0.1:3"],
    ]


def test_defaults_have_no_amber_mark():
    assert amber_marks(Settings()) == []


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings(storage=StorageSettings(durability="os")), "durability os"),
        (Settings(listeners=ListenerSettings(bind="0.0.0.0", insecure=True)), "insecure"),
        (Settings(broker=BrokerSettings(faults=True)), "faults"),
    ],
)
def test_every_weakened_promise_has_its_mark(settings, word):
    (mark,) = amber_marks(settings)
    assert word in mark


def test_marks_are_printed_under_the_lines():
    out = io.StringIO()
    print_banner(["ready"], ["durability os"], out)
    assert out.getvalue().splitlines()[:2] == ["ready", "  ! durability os"]
