"""Publishers at ten times what the consumer takes: memory is bounded, nothing lost, blame right.

Short here, with a small pool so that it is soon full; a minute and the real pool with ``--long``.
The disk is memory where there is such a thing: a slow disk would be a bottleneck of its own.
"""

import asyncio
import tempfile
from pathlib import Path

import msgspec
import pytest

from kit.amqp.load import Plan, overload
from penstock.testing.running import BrokerProcess

SMALL_POOL = (
    "--set", "flow.inflight_bytes_max=8MiB", "--set", "flow.connection_bytes_max=1MiB",
)  # fmt: skip
QUICK_DISK = Path("/dev/shm")
SECONDS = 3.0
LONG_SECONDS = 60.0
OPEN = Plan(SECONDS + 6)
"""A consumer is behind after five seconds (``flow.behind_ms``), and is looked at after that."""
HOLDING = Plan(SECONDS, publishers=12, consumer_per_s=100, body_bytes=20_000, length_max=50)


def run(plan, *flags):
    where = QUICK_DISK if QUICK_DISK.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as directory,
        BrokerProcess(Path(directory) / "data", flags=flags) as broker,
    ):
        return asyncio.run(overload(broker.endpoints, broker.pid, plan))


def check(found, blamed):
    assert found.is_complete, found
    assert found.is_bounded, (found.idle_bytes, found.peak_bytes, found.pool_peak_bytes)
    assert found.sent > 3 * found.consumed_meanwhile, found
    # In the first moments there may be nobody to blame; and on a machine that has no time for the
    # commit thread the log is to blame now and then, rightly.
    assert blamed in found.blamed, found.blamed


def test_a_queue_that_takes_everything_grows_on_disk_and_the_consumer_is_named():
    found = run(OPEN)
    check(found, "consumer")
    assert found.refused == 0


def test_a_full_queue_holds_its_publishers_within_the_pool_and_is_named():
    found = run(HOLDING, *SMALL_POOL)
    check(found, "limit")
    # It was put to the test: more was offered than there was room for.
    assert found.pool_peak_bytes > found.pool_bytes // 2


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plan", "blamed"),
    [
        (OPEN, "consumer"),
        (Plan(0, publishers=20, consumer_per_s=200, body_bytes=20_000, length_max=1000), "limit"),
    ],
)
def test_a_minute_of_overload(plan, blamed):
    found = run(msgspec.structs.replace(plan, seconds=LONG_SECONDS))
    check(found, blamed)
    assert next(iter(found.blamed)) == blamed, found.blamed
