"""A broker to attack, and the honest clients that must be served after each attack.

    def test_something_hostile(attack):
        with attack("--set", "listeners.handshake_ms_max=700") as victim:
            ...                 # hostile sockets: victim.dial("amqp")
            victim.serves()     # also while the attack lasts, if it must hold then

At the end of the ``with`` block every protocol serves an honest client within ``TURNS_MAX`` turns,
memory is back within ``MEMORY_BYTES_MAX`` (of the broker and, if it runs, of the Flight process),
and no log has a traceback. Turns are counted by the broker, so they do not depend on the machine;
milliseconds and the lag of the loop are only reported (``record_property``: ``--junitxml``).
"""

import contextlib
import re
import socket
import time
import urllib.request
from pathlib import Path

import pika
import pytest

from kit.pulsar_peer import PulsarPeer
from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import Ticket
from penstock.cli.remoting import RemotingClient
from penstock.testing.running import eventually, running_broker
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode

PATIENCE_S = 20.0
MEMORY_BYTES_MAX = 64 * 1024 * 1024
"""What an attack may leave behind."""
TURNS_MAX = 100
"""What one honest client may take from its connect to its close: five times what is usual."""
PAGE_KEPT_S = 0.02
"""A page is shown for four times as long as it took to make."""
BUSY_SENDS_MAX = 10
"""Busy is an answer by milliseconds, which a slow machine gives, too: clients send again."""
TOPIC = "honest-topic"
PULSAR_TOPIC = "persistent://public/default/honest-entries"


class Victim:
    """A running broker and what to look at."""

    def __init__(self, broker, report) -> None:
        self.broker = broker
        self._report = report
        self.before_bytes = 0
        """Memory that counts as no attack's."""

    @property
    def log(self) -> str:
        """What the process wrote."""
        return self.broker.output

    @property
    def resident_bytes(self) -> int:
        """Memory of the broker and of the processes it started."""
        return sum(map(_resident_bytes, _family(self.broker.pid)))

    def keeps(self) -> None:
        """What was made until now stays, and is no part of the attack."""
        self.before_bytes = self.resident_bytes

    def dial(self, listener) -> socket.socket:
        return socket.create_connection(self.broker.address(listener), PATIENCE_S)

    def page(self, path) -> str:
        with urllib.request.urlopen(f"{self.broker.http_url}{path}", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
            return answer.read().decode()

    def metric(self, name) -> float:
        """The sum of a metric over its labels."""
        return _sum_of(name, self.page("/metrics"))

    def serves(self) -> dict[str, int]:
        """An honest client of every protocol gets its answer; turns that each took, and a look."""
        clients = {
            "http": self._http, "amqp": self._amqp, "rocketmq": self._name_server,
            "rocketmq_broker": self._rocketmq, "pulsar": self._pulsar, "flight": self._flight,
        }  # fmt: skip
        taken = {}
        before = self._turns()
        for name, client in clients.items():
            if name in self.broker.endpoints:
                began = time.monotonic()
                client()
                self._report(f"{name}_ms", round(1000 * (time.monotonic() - began), 1))
                after = self._turns()
                taken[name] = after - before
                self._report(f"{name}_turns", taken[name])
                before = after
        # Together: a page may be kept for longer than one of them takes, and its turns then count
        # for the next.
        assert sum(taken.values()) <= TURNS_MAX * len(taken), taken
        return taken

    def _turns(self) -> int:
        """Pages are kept for a moment; of a broker with much to tell, turns may count one later."""
        time.sleep(PAGE_KEPT_S)
        return int(self.metric("penstock_turns_total"))

    # Honest clients.

    def _http(self) -> None:
        assert self.page("/livez")
        assert "penstock_turns_total" in self.page("/metrics")

    def _amqp(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self.broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_declare("honest")
            channel.confirm_delivery()
            channel.basic_publish("", "honest", b"x")
            assert channel.basic_get("honest", auto_ack=True)[2] == b"x"

    def _name_server(self) -> None:
        with RemotingClient(*self.broker.address("rocketmq")) as client:
            assert client.request(int(RequestCode.GET_BROKER_CLUSTER_INFO)).is_ok

    def _rocketmq(self) -> None:
        with RemotingClient(*self.broker.address("rocketmq_broker")) as client:
            sent = client.send(TOPIC, b"x")
            for _ in range(BUSY_SENDS_MAX):
                if sent.code != ResponseCode.SYSTEM_BUSY:
                    break
                sent = client.send(TOPIC, b"x")
            assert sent.is_ok, sent
            pulled = client.pull(TOPIC, sent.number("queueId"), sent.number("queueOffset"))
            assert [each.body for each in pulled.messages] == [b"x"]

    def _pulsar(self) -> None:
        with PulsarPeer(self.broker.address("pulsar"), seconds=PATIENCE_S) as peer:
            peer.connect()
            consumer = peer.consumer(PULSAR_TOPIC, "honest", "Shared")
            sent = peer.producer(PULSAR_TOPIC).publish(b"x")
            consumer.flow(1)
            assert consumer.message().id == sent
            consumer.acked(sent)

    def _flight(self) -> None:
        with BulkClient(self.broker.endpoints["flight"], patience_s=PATIENCE_S) as client:
            found = client.resolve([TOPIC])
            queue = next(each for each in found.topics[0].queues if each.end > each.earliest)
            ticket = Ticket(
                topic=TOPIC, queue=queue.queue, start=queue.end - 1, end=queue.end,
                epoch=found.epoch, incarnation=queue.incarnation,
            )  # fmt: skip
            assert sum(each.num_rows for each in client.read(ticket)) == 1


def _sum_of(name, page) -> float:
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
    assert found, f"no metric {name}"
    return sum(map(float, found))


def _resident_bytes(pid) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
    return 0


def _family(pid) -> list[int]:
    """A process and its children."""
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return [pid, *children]


@pytest.fixture
def attack(record_property):
    """``with attack(*flags) as victim:`` afterwards everybody is served, and nothing broke."""

    @contextlib.contextmanager
    def begin(*flags):
        with running_broker(*flags) as broker:
            victim = Victim(broker, record_property)
            victim.serves()
            victim.keeps()
            yield victim
            victim.serves()
            # Connections that were just closed are freed within the next look of the collector.
            most_bytes = victim.before_bytes + MEMORY_BYTES_MAX
            eventually(
                lambda: victim.resident_bytes <= most_bytes,
                what=f"memory to come back to {most_bytes:,} bytes",
            )
            record_property("left_bytes", victim.resident_bytes - victim.before_bytes)
            record_property("loop_lag_s", victim.metric("penstock_loop_lag_seconds_sum"))
            assert "Traceback" not in victim.log

    return begin
