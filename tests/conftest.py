"""Options of the whole suite: ``--long`` for the full-size fault tests, ``--seed`` to rerun one.

``--real-rocketmq`` runs tests/interop/client and nothing else, against Apache RocketMQ.
"""

import contextlib
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from kit.rocketmq.clusters import Unavailable, jars

# Speed is measured in benchmarks; on a busy machine a law may take its time.
# Without "explain": it traces every line of a state machine, and the timeout came before the cause.
settings.register_profile(
    "penstock",
    deadline=None,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")


def pytest_addoption(parser):
    parser.addoption(
        "--long",
        action="store_true",
        default=False,
        help="run fault and simulator tests at full size (minutes to hours)",
    )
    parser.addoption(
        "--seed",
        type=int,
        default=None,
        help="run seeded tests with this one seed, to look at a failure again",
    )
    parser.addoption(
        "--real-rocketmq",
        action="store_true",
        default=False,
        help="run the client's interop tests, and only them, against Apache RocketMQ 5.3 (Maven)",
    )
    parser.addoption(
        "--real-pulsar",
        action="store_true",
        default=False,
        help="hold tests/interop/pulsar's conversations with a running Apache Pulsar 4.0",
    )
    parser.addoption(
        "--real-pulsar-url", default="127.0.0.1:6650", help="where its binary protocol listens"
    )
    parser.addoption(
        "--real-pulsar-admin", default="http://127.0.0.1:8080", help="where its REST API listens"
    )
    parser.addoption(
        "--real-pulsar-pid", type=int, default=None, help="its process, for the test that stops it"
    )


def pytest_configure(config):
    """The jars are fetched once, before the first test and its time-out."""
    # A shell that runs the suite in its background has it ignore Ctrl-C, and all programs that
    # tests start, and end in that way, would inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--real-rocketmq") and not hasattr(config, "workerinput"):
        with contextlib.suppress(Unavailable):
            jars()


def pytest_ignore_collect(collection_path, config):
    """With ``--real-rocketmq`` everything but tests/interop/client is left alone."""
    client = Path(__file__).parent / "interop" / "client"
    is_on_the_way = collection_path in client.parents or client in (
        collection_path,
        *collection_path.parents,
    )
    return True if config.getoption("--real-rocketmq") and not is_on_the_way else None


@pytest.fixture(scope="session")
def is_long(request):
    """True when the full-size runs were asked for."""
    return request.config.getoption("--long")


@pytest.fixture(scope="session")
def chosen_seed(request):
    """The seed given with ``--seed``, or None for the usual range."""
    return request.config.getoption("--seed")


def pytest_collection_modifyitems(config, items):
    # Spark's tests share a JVM. First in line they stay with the first process of the suite: what
    # others steal from it when they are idle is taken from the end, where those are that start a
    # Spark of their own.
    items.sort(
        key=lambda item: (
            item.get_closest_marker("spark") is None,
            "spark" not in item.fixturenames,
        )
    )
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="full size: give --long"))
