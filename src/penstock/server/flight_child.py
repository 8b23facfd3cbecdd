"""Runs the Flight process so that it cannot outlive its broker.

Standard input is a pipe whose other end only the broker holds. When it breaks, however the broker
ended, this process ends at once: it has nothing to save, it only reads.
"""

import os
import runpy
import sys
import threading


def watch() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=watch, name="penstock-broker-watch", daemon=True).start()
    sys.argv[0] = "penstock.bulk"
    runpy.run_module("penstock.bulk", run_name="__main__", alter_sys=True)
