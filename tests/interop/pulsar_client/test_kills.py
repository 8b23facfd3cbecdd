"""A broker that is killed under load, three times: what our producer sent is there, once.

With ``--long``; the short run has one with a consumer on it in ``test_cuts_and_kills.py``.
"""

import threading
import time

import pytest

from kit.pulsar_peer import PulsarRest
from kit.rocketmq.clusters import free_ports
from penstock.client.pulsar import Client, ClientError, MessageId, NothingReceived
from penstock.testing.running import BrokerProcess

pytestmark = pytest.mark.long
KILLS = 3
TOPIC = "persistent://public/kills/t"
WAIT_MS = 10_000
SECONDS_BETWEEN = 0.4


@pytest.fixture
def broker(tmp_path, request):
    """A Penstock that keeps its port when it comes back."""
    if request.config.getoption("--real-pulsar"):
        pytest.skip("Apache's server is started by hand, and not killed here")
    (port,) = free_ports(1)
    flags = ("--pulsar", str(port))
    with BrokerProcess(tmp_path / "data", flags=flags) as process:
        rest = PulsarRest(f"http://{process.endpoints['http']}")
        rest.done("PUT", "namespaces/public/kills", {})
        yield process


def deduplicate(broker):
    rest = PulsarRest(f"http://{broker.endpoints['http']}")
    rest.done("POST", "namespaces/public/kills/deduplication", True)


def publish_through_kills(broker, client, **options):
    """Numbers, sent all the time while the broker dies and comes back; how many, and outcomes."""
    outcomes, count = [], 0
    is_over = threading.Event()

    def kill():
        for _ in range(KILLS):
            time.sleep(SECONDS_BETWEEN)
            broker.kill()
            broker.start()
        is_over.set()

    killer = threading.Thread(target=kill)
    with client.create_producer(TOPIC, producer_name="me", **options) as producer:
        producer.send_callback(b"0", outcomes.append)
        killer.start()
        while not is_over.is_set():
            count += 1
            producer.send_callback(b"%d" % count, outcomes.append)
            if count % 50 == 0:
                is_over.wait(0.01)
        killer.join()
        producer.flush()
        statistics = producer.statistics()
    return count + 1, outcomes, statistics


def read_all(client):
    found = []
    with client.create_reader(TOPIC, MessageId.earliest) as reader:
        while reader.has_message_available():
            found.append(int(reader.read_next(WAIT_MS).data))
        with pytest.raises(NothingReceived):
            reader.read_next(200)
    return found


@pytest.mark.parametrize("is_batching", [True, False])
def test_3_kills_with_dedup_lose_and_double_nothing(broker, is_batching):
    deduplicate(broker)
    with Client(f"pulsar://{broker.endpoints['pulsar']}", backoff_initial_ms=20) as client:
        count, outcomes, statistics = publish_through_kills(
            broker, client, batching_enabled=is_batching
        )
        assert len(outcomes) == count
        assert not [each for each in outcomes if isinstance(each, ClientError)]
        assert statistics.resent > 0
        assert read_all(client) == list(range(count))


def test_3_kills_without_dedup_lose_nothing(broker):
    with Client(f"pulsar://{broker.endpoints['pulsar']}", backoff_initial_ms=20) as client:
        count, outcomes, statistics = publish_through_kills(broker, client)
        assert statistics.stored == len(outcomes) == count
        found = read_all(client)
    # What was stored and not confirmed may be there twice, and nothing is out of order else.
    assert list(dict.fromkeys(found)) == list(range(count))
    assert len(found) - count <= statistics.resent * 1000
