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

from penstock.bulk.broker import BrokerLine
from penstock.bulk.flight import STREAMS_MAX, BulkServer
from penstock.bulk.link import SOCKET_NAME

PARENT_CHECK_S: Final = 0.5


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    line = BrokerLine(options.socket or options.data / SOCKET_NAME)
    host = f"[{options.host}]" if ":" in options.host else options.host
    server = BulkServer(
        options.data, line, f"grpc://{host}:{options.port}", streams_max=options.streams_max
    )
    print(json.dumps({"port": server.port}), flush=True)
    while not stop.wait(PARENT_CHECK_S):
        if options.parent and os.getppid() != options.parent:
            break
    line.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.bulk", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the broker's data directory")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on, 0 = any")
    parser.add_argument("--socket", type=Path, help="the broker's socket, else in the directory")
    parser.add_argument("--parent", type=int, default=0, help="stop when this is not the parent")
    parser.add_argument("--streams-max", type=int, default=STREAMS_MAX, help="reads at a time")
    parser.add_argument("--log-level", default="warning", help="debug, info, warning or error")
    return parser


if __name__ == "__main__":
    # Not ``server.shutdown``: readers that hang must not keep a stopped process. What others miss
    # they ask for again.
    code = main()
    sys.stdout.flush()
    os._exit(code)
