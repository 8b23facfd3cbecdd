"""Readers that ask for rows and take none."""

import contextlib

from pyarrow import flight

from penstock.bulk.client import FLIGHT_OPTIONS
from penstock.bulk.link import Ticket
from penstock.cli.remoting import RemotingClient

READERS = 40
"""More than there are reads at a time."""
MESSAGES = 300
BODY = bytes(100_000)
FLAGS = ("--flight", "0", "--set", "spark.read_idle_ms_max=2s")


def test_reads_that_take_nothing_end_and_others_are_served(attack):
    with attack(*FLAGS) as victim, contextlib.ExitStack() as stack:
        with RemotingClient(*victim.broker.address("rocketmq_broker")) as client:
            client.create_topic("wide", 1)
            for _ in range(MESSAGES):
                assert client.send("wide", BODY).is_ok
        place = f"grpc://{victim.broker.endpoints['flight']}"
        ticket = Ticket(topic="wide", queue=0, start=0, end=MESSAGES, rows_per_batch=10)
        for _ in range(READERS):
            # No connection of another is shared: gRPC would put all streams on one.
            options = [*FLIGHT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
            peer = stack.enter_context(flight.connect(place, generic_options=options))
            stack.callback(peer.do_get(flight.Ticket(ticket.encode())).cancel)
        victim.serves()
        assert "a read that takes nothing was ended" in victim.log
