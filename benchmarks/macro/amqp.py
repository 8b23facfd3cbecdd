"""AMQP 0-9-1 over sockets: Penstock and RabbitMQ in turns, driven by the same C program.

    python benchmarks/macro/amqp.py                        every case, 5 rounds, medians, ratios
    python benchmarks/macro/amqp.py --only unique-128      one case (several: give it again)
    python benchmarks/macro/amqp.py --broker penstock      without RabbitMQ
    python benchmarks/macro/amqp.py --rounds 1 --messages 30000 --json

The driver is ``amqpload.c`` (``--driver``, or ``AMQPLOAD_C``; beside this repository it is found
by itself), compiled once into the run's own directory. It publishes persistent messages with
confirms to a durable queue, 1,000 in flight, and consumes them with a prefetch of 1,000; one
thread, raw frames. Both brokers run all the time, each on a free port; a round runs a case against
one and then the other, so that a slow minute of the machine hits both. CPU is that of the broker's
process.

A shared host takes the cores away for milliseconds at a time, and a p99 at a moderate rate is then
the host's; the table says how much it took. With ``--stolen-max PERCENT`` a run of such a case
during which it took more is made again, some times at most, in turns, and the least disturbed one
counts: chosen by what was stolen alone, never by its result, and for both brokers alike.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from amqp_cases import CASES, idle_mib, judged, median_of, start_seconds, table
from host import Stolen

from kit.amqp.rabbitmq import Unavailable, rabbitmq
from penstock.testing.running import running_broker

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT.parent / "shared" / "bench" / "amqpload.c"
RUN_SECONDS_MAX = 300


class Failed(Exception):
    """The driver could not be made, or said that messages are missing."""


def compiled(source, directory):
    if not source.is_file():
        raise Failed(
            f"no driver at {source}; name amqpload.c with --driver or the variable AMQPLOAD_C"
        )
    program = Path(directory, "amqpload")
    command = ["gcc", "-O2", "-w", "-o", str(program), str(source)]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as why:
        raise Failed(f"the driver does not compile: {why}") from None
    return program


def loaded(program, case, port, pid, messages):
    """One run of the driver; its own report."""
    count = case.messages or messages
    command = [program, "-P", str(port), "-i", str(pid), "-n", str(count), *case.flags]
    command += ["-T", str(RUN_SECONDS_MAX)]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=RUN_SECONDS_MAX + 60,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"{case.name}: {done.stderr.strip() or 'messages are missing'}")
    report = json.loads(done.stdout)
    wrong = {name: report[name] for name in ("gaps", "dups", "nacked", "returned") if report[name]}
    if wrong:
        raise Failed(f"{case.name}: {wrong}")
    return {
        "per_s": report["e2e_per_s"],
        "cpu_us": report["broker_cpu_s_per_M"],
        "confirm_p99_ms": report["confirm_ms"]["p99"],
        "delivery_p99_ms": report["lat_ms"]["p99"],
    }


def undisturbed(options, program, case, brokers, said):
    """By broker, its first run that the host left alone, else the least disturbed one; in turns."""
    best = {}
    for _ in range(case.tries):
        for name in brokers:
            if name in best and best[name]["stolen"] <= options.stolen_max:
                continue
            stolen = Stolen()
            report = loaded(program, case, *brokers[name], options.messages)
            report["stolen"] = stolen.percent
            said(name, report)
            if name not in best or report["stolen"] < best[name]["stolen"]:
                best[name] = report
    return best


def rounds(options, program, brokers):
    """Reports by case and broker, one of each per round."""
    found = {case.name: {name: [] for name in brokers} for case in options.cases}
    for number in range(options.rounds):
        for case in options.cases:
            said = partial(say, f"{number + 1}/{options.rounds} {case.name}")
            for name, report in undisturbed(options, program, case, brokers, said).items():
                found[case.name][name].append(report)
    return {
        case: {name: median_of(reports) for name, reports in each.items()}
        for case, each in found.items()
    }


def say(heading, name, report):
    figures = ", ".join(f"{key} {value:,.1f}" for key, value in report.items())
    print(f"{heading} {name}: {figures}", file=sys.stderr)


def measured(options):
    found = {}
    with ExitStack() as stack:
        place = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.dir)
        )
        program = compiled(Path(options.driver), place)
        brokers = {}
        if options.broker in (None, "penstock"):
            if options.starts:
                found["start"] = {"penstock_start_s": start_seconds(Path(place), options.rounds)}
            ours = stack.enter_context(running_broker(data=Path(place, "data")))
            brokers["penstock"] = (ours.address("amqp")[1], ours.pid)
        if options.broker in (None, "rabbitmq"):
            try:
                theirs = stack.enter_context(rabbitmq(directory=place))
                brokers["rabbitmq"] = (theirs.port, theirs.pid)
                found["rabbitmq"] = theirs.version
                found.setdefault("start", {})["rabbitmq_start_s"] = theirs.start_seconds
            except Unavailable as why:
                print(f"RabbitMQ left out: {why}", file=sys.stderr)
        if options.starts:
            for name, (_, pid) in brokers.items():
                found["start"][f"{name}_idle_mib"] = idle_mib(pid)
        found["cases"] = rounds(options, program, brokers)
    return found


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=[*names, "start"], help="a case")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000, help="of a saturated run")
    parser.add_argument("--stolen-max", type=float, default=100.0, help="percent of the machine")
    parser.add_argument("--broker", choices=["penstock", "rabbitmq"], help="only one of them")
    parser.add_argument("--driver", default=os.environ.get("AMQPLOAD_C", str(DRIVER)))
    parser.add_argument("--dir", help="directory (disk) for the stores")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.cases = [case for case in CASES if not options.only or case.name in options.only]
    options.starts = not options.only or "start" in options.only
    return options


def main():
    options = arguments()
    # Whoever ends it ends its brokers, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found = measured(options)
    except Failed as why:
        sys.exit(f"amqp.py: {why}")
    except KeyboardInterrupt:
        sys.exit("amqp.py: ended early")
    verdicts = judged(found)
    if options.json:
        print(json.dumps({**found, "goals": [each._asdict() for each in verdicts]}, indent=2))
    else:
        print(table(found, verdicts))


if __name__ == "__main__":
    main()
