"""Readers that ask for rows and take none, and queries without end."""

import contextlib

import msgspec
import pytest
from pyarrow import flight

from penstock.bulk.rows import FLIGHT_OPTIONS
from penstock.bulk.tickets import Ticket
from penstock.cli.remoting import RemotingClient
from penstock.model.queries import LeaseRequest

READERS = 40
"""More than there are reads at a time."""
MESSAGES = 300
BODY = bytes(100_000)
FLAGS = ("--flight", "0", "--set", "spark.read_idle_ms_max=2s")


def connected(place):
    """No connection of another is shared: gRPC would put all streams on one."""
    options = [*FLIGHT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    return flight.connect(place, generic_options=options)


def test_reads_that_take_nothing_end_and_others_are_served(attack):
    with attack(*FLAGS) as victim, contextlib.ExitStack() as stack:
        with RemotingClient(*victim.broker.address("rocketmq_broker")) as client:
            client.create_topic("wide", 1)
            for _ in range(MESSAGES):
                assert client.send("wide", BODY).is_ok
        place = f"grpc://{victim.broker.endpoints['flight']}"
        ticket = Ticket(topic="wide", queue=0, start=0, end=MESSAGES, rows_per_batch=10)
        for _ in range(READERS):
            peer = stack.enter_context(connected(place))
            stack.callback(peer.do_get(flight.Ticket(ticket.encode())).cancel)
        victim.serves()
        assert "a read that takes nothing was ended" in victim.log


def test_queries_without_end_leave_room_for_the_first_query_of_another(attack):
    def lease(peer, name):
        # Whom it counts for is not the client's to say.
        wanted = LeaseRequest(subscription=name, topics=["read"], maker=name)
        list(peer.do_action(flight.Action("lease", msgspec.json.encode(wanted))))

    with attack("--flight", "0", "--set", "spark.queries_max=100") as victim:
        with RemotingClient(*victim.broker.address("rocketmq_broker")) as client:
            client.create_topic("read", 1)
        place = f"grpc://{victim.broker.endpoints['flight']}"
        with connected(place) as hostile, connected(place) as honest:
            hostile.wait_for_available(timeout=30)
            for number in range(90):
                lease(hostile, f"q{number}")
            with pytest.raises(flight.FlightServerError, match="made fewer than"):
                lease(hostile, "q90")
            lease(hostile, "q0")
            lease(honest, "first")
            assert '"first"' in victim.page("/api/queries")
