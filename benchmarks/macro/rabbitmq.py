"""A private RabbitMQ in the foreground, until Ctrl-C: the reference for suites and figures.

    python benchmarks/macro/rabbitmq.py                  on a free port, which is printed
    python benchmarks/macro/rabbitmq.py --port 5672      where the tests of AMQP clients look

Debian's package must be installed (``rabbitmq-server``); its service need not run. Node, port
mapper, cookie and files are this run's own and are gone when it ends.
"""

import argparse
import signal
import sys

from kit.amqp.rabbitmq import Unavailable, rabbitmq


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0 = a free one")
    parser.add_argument("--dir", help="directory (disk) for the store")
    options = parser.parse_args()
    # An operator's SIGTERM cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with rabbitmq(options.port, options.dir) as broker:
            print(
                f"RabbitMQ {broker.version} on 127.0.0.1:{broker.port}, pid {broker.pid}, "
                f"up after {broker.start_seconds:.2f} s; Ctrl-C stops it\n"
                f"RABBITMQCTL={broker.rabbitmqctl}",
                flush=True,
            )
            signal.pause()
    except KeyboardInterrupt:
        pass
    except Unavailable as why:
        sys.exit(f"no RabbitMQ: {why}")


if __name__ == "__main__":
    main()
