"""The Flight process: ``python -m penstock.bulk --data DIR --port N``; the broker starts it (D18).

It says on its standard output where it listens, as one line of JSON (``{"port": 47470}``), and runs
until it is told to stop (SIGTERM, SIGINT) or, with ``--parent PID``, until that process is gone:
a broker that was killed takes its readers along, and the next broker starts its own.

Not here: starting and watching it (``server/``), what it serves (``flight.py``).
"""

import argparse
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from penstock.bulk.broker import BrokerClient
from penstock.bulk.flight import IDLE_MS_MAX, STREAMS_MAX, BulkServer
from penstock.bulk.link import SOCKET_NAME
from penstock.bulk.staging import HOLD_MS_MAX

LOCALLY: Final = "127.0.0.1"
PARENT_CHECK_S: Final = 0.5


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    broker = BrokerClient(options.socket or options.data / SOCKET_NAME)
    hosts = options.host or [LOCALLY]
    servers = [
        BulkServer(
            options.data,
            broker,
            _location(hosts[0], options.port),
            streams_max=options.streams_max,
            idle_ms_max=options.idle_ms_max,
            stage_hold_ms_max=options.stage_hold_ms_max,
        )
    ]
    for host in hosts[1:]:
        location = _location(host, servers[0].port)
        servers.append(BulkServer(options.data, broker, location, beside=servers[0]))
    print(json.dumps({"port": servers[0].port}), flush=True)
    while not stop.wait(PARENT_CHECK_S):
        if options.parent and os.getppid() != options.parent:
            break
    broker.close()
    return 0


def _location(host: str, port: int) -> str:
    return f"grpc://[{host}]:{port}" if ":" in host else f"grpc://{host}:{port}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.bulk", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the broker's data directory")
    parser.add_argument("--host", action="append", help="address to listen on; may come twice")
    parser.add_argument("--port", type=int, default=0, help="port to listen on, 0 = any")
    parser.add_argument("--socket", type=Path, help="the broker's socket, else in the directory")
    parser.add_argument("--parent", type=int, default=0, help="stop when this is not the parent")
    parser.add_argument("--streams-max", type=int, default=STREAMS_MAX, help="reads at a time")
    parser.add_argument("--idle-ms-max", type=int, default=IDLE_MS_MAX, help="of an idle read")
    parser.add_argument(
        "--stage-hold-ms-max", type=int, default=HOLD_MS_MAX, help="of a put that finds no room"
    )
    parser.add_argument("--log-level", default="warning", help="debug, info, warning or error")
    return parser


if __name__ == "__main__":
    # Not ``server.shutdown``: readers that hang must not keep a stopped process. What others miss
    # they ask for again.
    code = main()
    sys.stdout.flush()
    os._exit(code)
