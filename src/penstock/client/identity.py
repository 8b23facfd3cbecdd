"""Who this client is: ``ip@instance[@unit]``, and the ip.

Members of one group are told apart by their client ids, and the brokers sort them by it. A client
without a name of its own is named ``pid#nanoseconds``: two processes of one machine, and a process
and its successor of the same pid, must differ.
"""

import os
import socket
import time
from typing import Final

DEFAULT_NAME: Final = "DEFAULT"
_SOMEWHERE: Final = ("192.0.2.1", 9)
"""A documentation address: asking for the way there sends nothing."""
_names: Final[dict[int, str]] = {}


def process_name() -> str:
    """``pid#nanoseconds`` of this process: always the same within it, and new after a fork."""
    pid = os.getpid()
    if pid not in _names:
        _names.clear()
        _names[pid] = f"{pid}#{time.monotonic_ns()}"
    return _names[pid]


def local_ip() -> str:
    """The address by which others see this machine, as far as it can tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def client_id(ip: str, instance_name: str, unit_name: str | None = None) -> str:
    """The id under which brokers know a client."""
    return f"{ip}@{instance_name}@{unit_name}" if unit_name else f"{ip}@{instance_name}"
