"""Each test runs pytest as a user would: a file of tests, a configuration, a process of its own."""

import os
import subprocess
import sys

import pytest

TWO_TESTS = """
import pika

seen = []

def test_one(penstock_broker):
    seen.append(penstock_broker.pid)
    with pika.BlockingConnection(pika.URLParameters(penstock_broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders")
        channel.basic_publish("", "orders", b"one teapot")
        assert channel.basic_get("orders", auto_ack=True)[2] == b"one teapot"

def test_two(penstock_broker):
    assert (penstock_broker.pid in seen) == SAME
    assert penstock_broker.name_server.startswith("127.0.0.1:")
    assert penstock_broker.http_url.startswith("http://127.0.0.1:")
"""


def run(tmp_path, tests, ini=""):
    tmp_path.joinpath("test_shop.py").write_text(tests)
    tmp_path.joinpath("pytest.ini").write_text(f"[pytest]\n{ini}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("ini", "same"), [("", "False"), ("penstock_broker_scope = session\n", "True")]
)
def test_a_test_or_a_session_gets_a_broker_of_its_own(tmp_path, ini, same):
    done = run(tmp_path, TWO_TESTS.replace("SAME", same), ini)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_flags_of_up_are_taken_from_the_configuration(tmp_path):
    test = "def test_it(penstock_broker):\n    assert 'amqp' not in penstock_broker.endpoints\n"
    done = run(tmp_path, test, "penstock_broker_flags = --amqp off\n")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_an_unknown_scope_is_named_with_those_there_are(tmp_path):
    test = "def test_it(penstock_broker):\n    pass\n"
    done = run(tmp_path, test, "penstock_broker_scope = tests\n")
    assert "penstock_broker_scope is 'tests'; use one of function, class" in (
        done.stdout + done.stderr
    )
