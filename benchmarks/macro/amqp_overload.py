"""Publishers at ten times what the consumer takes, for a minute: memory, pool, losses, diagnosis.

    .venv/bin/python benchmarks/macro/amqp_overload.py [--seconds 60] [--json]

Two runs: a queue that takes everything (its backlog is on disk, the consumer is to blame), and one
of 1,000 messages that holds its publishers (x-overflow: hold; twenty of them with large messages
fill the in-flight pool). Exit code 1 when something was lost or memory is not bounded.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

from kit.amqp.load import Plan, overload
from penstock.model.ids import size_text
from penstock.testing.running import BrokerProcess

PLANS = {
    "open queue": Plan(0),
    "queue that holds": Plan(0, publishers=20, consumer_per_s=200, body_bytes=20_000,
                             length_max=1000),
}  # fmt: skip


def run(plan):
    with (
        tempfile.TemporaryDirectory(prefix="penstock-overload-") as directory,
        BrokerProcess(Path(directory) / "data") as broker,
    ):
        return asyncio.run(overload(broker.endpoints, broker.pid, plan))


def told(name, plan, found):
    yield f"{name}: {plan.publishers} publishers, {plan.body_bytes} B, {plan.seconds:.0f} s"
    yield (
        f"  sent {found.sent:,}, consumed meanwhile {found.consumed_meanwhile:,} "
        f"({found.sent / max(1, found.consumed_meanwhile):.1f} times as many sent)"
    )
    yield (
        f"  confirmed {found.confirmed:,}, refused {found.refused:,}, consumed {found.consumed:,}, "
        f"lost {found.lost}, twice {found.twice}, refused and consumed {found.strangers}"
    )
    yield (
        f"  memory idle {size_text(found.idle_bytes)}, peak {size_text(found.peak_bytes)}; pool at "
        f"most {size_text(found.pool_peak_bytes)} of {size_text(found.pool_bytes)}"
    )
    yield f"  blamed: {found.blamed}; last: {found.sentence}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    is_good = True
    for name, each in PLANS.items():
        plan = msgspec.structs.replace(each, seconds=options.seconds)
        found = run(plan)
        is_good &= found.is_complete and found.is_bounded
        lines = [msgspec.json.encode(found).decode()] if options.json else told(name, plan, found)
        print("\n".join(lines), flush=True)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
