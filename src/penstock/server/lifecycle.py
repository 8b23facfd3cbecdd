"""A broker from start to stop: what is opened in which order, and closed in the reverse.

Start: data directory and lock, ports bound (so that a taken one is told before a long recovery),
recovery, engine, turns, protocol listeners, HTTP, ready file. Until the ready file is there nothing
has been promised. The HTTP stack is imported last: it is the dearest part of the start.

Stop, on SIGTERM, Ctrl-C or ``request_stop``: accept nobody, let connections say goodbye, take turns
and commits until nothing is left, write the last snapshot, remove the ready file, unlock. A second
signal ends the waiting. A broker that is killed instead loses nothing that was confirmed; the clean
stop only saves the next start its recovery.

A failed sync (P4) or a mistake of our own stops it, too, and ``run`` raises what happened.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.model.errors import PenstockError
from penstock.server.banner import Figures, amber_marks, banner_lines, print_banner
from penstock.server.clock import SystemClock
from penstock.server.commit_policy import CommitPolicy
from penstock.server.faults import Faults
from penstock.server.heap import settle_heap
from penstock.server.listener import Listener, open_sockets
from penstock.server.loop_lag import LoopLag
from penstock.server.opening import Opened, open_engine
from penstock.server.places import http_places, protocol_places
from penstock.server.probes import Probes
from penstock.server.protocols import Listening, built_in
from penstock.server.pump import Surroundings
from penstock.server.pumps import Pumps
from penstock.server.ready_file import NAME, remove_ready, write_ready
from penstock.server.turns import Turns
from penstock.settings.load import Settings
from penstock.telemetry.events import FlowEvents
from penstock.telemetry.log_format import set_up_logging

if TYPE_CHECKING:
    from penstock.server.http.server import HttpServer

logger = logging.getLogger(__name__)
