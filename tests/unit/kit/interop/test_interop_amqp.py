"""``penstock interop pika|amqplib|rabbitmq-java``: what is read from reports, what is refused."""

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit import interop
from kit.interop import AMQPLIB, PIKA, RABBITMQ_JAVA, counted
from penstock.model.errors import PenstockError

KNOWN = next(iter(PIKA.known_failures))
PYTEST = f"""
.....F.F                                                                 [100%]
=========================== short test summary info ============================
FAILED {KNOWN} - pika.exceptions.ConnectionClosedByBroker
FAILED tests/acceptance/blocking_adapter_test.py::TestNew::test - AssertionError
=================== 2 failed, 559 passed, 40 skipped in 20.68s ===================
"""
TAP = """TAP version 13
# Subtest: connect
    not ok 1 - at all
      ---
      duration_ms: 12
not ok 1 - connect
# tests 3
# pass 2
# fail 1
# cancelled 0
# skipped 1
"""

MAVEN = """[INFO] Running com.rabbitmq.client.test.functional.QosTests
[ERROR] Tests run: 16, Failures: 1, Errors: 1, Skipped: 0, Time elapsed: 9 s <<< FAILURE! -- in \
com.rabbitmq.client.test.functional.QosTests
[ERROR] com.rabbitmq.client.test.functional.QosTests.fairness -- Time elapsed: 5.2 s <<< FAILURE!
org.opentest4j.AssertionFailedError: expected: <true> but was: <false>
[ERROR] com.rabbitmq.client.test.RpcTest.rpc(String)[1] -- Time elapsed: 0.019 s <<< ERROR!
[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 1, Time elapsed: 0.2 s -- in com.rabbitmq.X
[ERROR] Failures:
[ERROR]   QosTests.fairness:251 expected: <true> but was: <false>
[ERROR] Tests run: 18, Failures: 1, Errors: 1, Skipped: 1
"""


def run(*arguments):
    return CliRunner().invoke(interop.command, arguments)


def checkout(directory: Path, suite: interop.Suite) -> Path:
    (directory / suite.mark).write_text(suite.says)
    return directory


def test_what_rabbitmq_fails_too_is_set_apart():
    counts = counted(PIKA, PYTEST, 20.71)
    assert counts[:6] == ("pika", 559, 1, 1, 40, 20.7)
    assert counts.failures == ("tests/acceptance/blocking_adapter_test.py::TestNew::test",)
    assert not counts.is_good


def test_a_run_with_only_known_failures_is_good():
    assert counted(PIKA, PYTEST.replace("FAILED tests/acceptance/blocking_adapter_test.py::TestN",
                                        ""), 1).is_good  # fmt: skip


def test_a_failure_of_node_names_the_test_and_its_suite():
    counts = counted(AMQPLIB, TAP, 1)
    assert counts.failures == ("at all", "connect")
    assert (counts.passed, counts.skipped) == (2, 1)


def test_a_failure_of_maven_is_named_by_class_and_method():
    counts = counted(RABBITMQ_JAVA, MAVEN, 1)
    assert (counts.passed, counts.skipped) == (15, 1)
    assert counts.failures == ("QosTests.fairness", "RpcTest.rpc(String)[1]")


def test_a_class_that_maven_lost_sight_of_is_a_failure():
    lost = MAVEN.replace(
        "[INFO] Tests run: 2,", "[INFO] Running com.rabbitmq.Y\n[INFO] Tests run: 2,"
    )
    assert counted(RABBITMQ_JAVA, lost, 1).failures[-1] == "Y (did not end)"


@pytest.mark.parametrize("excused", ["QosTests.fairness", "QosTests"])
def test_what_penstock_has_not_is_set_apart_with_its_reason(excused):
    suite = RABBITMQ_JAVA._replace(excused={excused: "no fairness here"})
    counts = counted(suite, MAVEN, 1)
    assert counts.failures == ("RpcTest.rpc(String)[1]",)
    assert counts.excused == (("QosTests.fairness", "no fairness here"),)
    assert counts.failed_too == 0


def test_a_checkout_without_its_generator_is_told_what_to_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(interop.shutil, "which", lambda tool: tool)
    result = run("rabbitmq-java", str(checkout(tmp_path, RABBITMQ_JAVA)))
    assert "clone rabbitmq/rabbitmq-codegen there" in str(result.exception)


@pytest.mark.parametrize("suite", [PIKA, AMQPLIB, RABBITMQ_JAVA])
def test_a_suite_that_did_not_run_is_not_good(suite):
    assert not counted(suite, "No module named pytest\n", 1).is_good


@pytest.mark.parametrize("suite", [PIKA, AMQPLIB, RABBITMQ_JAVA])
def test_a_directory_that_is_no_checkout_is_refused(tmp_path, monkeypatch, suite):
    monkeypatch.setattr(interop.shutil, "which", lambda tool: tool)
    result = run(suite.name, str(tmp_path))
    assert isinstance(result.exception, PenstockError)
    assert f"no checkout of {suite.name}" in str(result.exception)


def test_a_missing_tool_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(interop.shutil, "which", lambda tool: None)
    assert "node is not installed" in str(run("amqplib", str(tmp_path)).exception)


def test_a_taken_port_is_named_before_anything_runs(tmp_path, monkeypatch):
    suite = PIKA._replace(install=lambda directory: None, command=lambda grep: ["false"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(interop, "PORT", taken.getsockname()[1])
        with pytest.raises(PenstockError, match="listens on"):
            interop.run_suite(
                suite, checkout(tmp_path, suite), grep="", running=False, output=None, is_json=False
            )


def test_the_counts_of_a_running_broker_are_told_and_the_report_is_kept(tmp_path, monkeypatch):
    report = tmp_path / "said.txt"
    report.write_text(PYTEST)
    suite = PIKA._replace(install=lambda directory: None, command=lambda grep: ["cat", str(report)])
    output = tmp_path / "kept.txt"
    command = interop._verb(suite)
    flags = [str(checkout(tmp_path, suite)), "--running", "--json", "--output", str(output)]
    result = CliRunner().invoke(command, flags)
    assert result.exit_code == 1
    assert json.loads(result.output)["failed"] == 1
    assert output.read_text() == PYTEST


def test_a_suite_that_controls_a_running_broker_is_told_how(tmp_path, monkeypatch):
    monkeypatch.setattr(interop.shutil, "which", lambda tool: tool)
    suite = RABBITMQ_JAVA._replace(
        install=lambda directory: None, command=lambda grep: ["echo", "called with"]
    )
    output = tmp_path / "kept.txt"
    flags = [str(checkout(tmp_path, suite)), "--running", "--output", str(output)]
    monkeypatch.delenv(interop.RABBITMQCTL, raising=False)
    refused = CliRunner().invoke(interop._verb(suite), flags)
    assert "name a program in RABBITMQCTL" in str(refused.exception)
    monkeypatch.setenv(interop.RABBITMQCTL, "the-real-one")
    CliRunner().invoke(interop._verb(suite), flags)
    assert output.read_text() == "called with -Drabbitmqctl.bin=the-real-one\n"
