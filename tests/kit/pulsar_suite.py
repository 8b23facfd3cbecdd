"""``penstock interop pulsar DIR``: the Python client's own tests against Penstock, and counts.

    penstock interop pulsar DIR            DIR: a checkout of apache/pulsar-client-python
    penstock interop pulsar DIR --running  against whatever listens on 6650 and 8080

A fresh broker listens on the two ports that are written into the tests. Nothing of the checkout is
copied or changed; the client's wheel and what the tests import are installed once, into a
virtual environment in it (``.venv``).

Two tiers on the same broker: first those that also call the REST API, then those of the binary
protocol alone. The other way round leftovers of the second disturb the first, on a real Pulsar as
well. Left out are tests that want TLS, users or a container, one that dials an address of the
documentation, one that interrupts its own process, and those that need no broker.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

import click

from kit.pulsar_peer import PulsarRest
from penstock.model.errors import PenstockError

VERSION: Final = "3.13.0"
"""Of the wheel: the one whose tests were counted on a real server."""

BINARY_PORT: Final = 6650
REST_PORT: Final = 8080
REST_URL: Final = f"http://localhost:{REST_PORT}"
FLAGS: Final = (
    "--pulsar", str(BINARY_PORT), "--pulsar-http", str(REST_PORT), "--http", "0",
    "--amqp", "off", "--rocketmq", "off", "--rocketmq-broker", "off", "--flight", "off",
)  # fmt: skip

TEST_SECONDS_MAX: Final = 120
"""A test that hangs ends as a failure; the slowest takes 16 s on a real server."""
SUITE_SECONDS_MAX: Final = 1800.0

FILES: Final = (
    "pulsar_test.py", "asyncio_test.py", "schema_test.py", "table_view_test.py", "reader_test.py",
    "custom_logger_test.py", "debug_logger_test.py",
)  # fmt: skip
REST: Final = frozenset((
    "PulsarTest::test_get_partitioned_topic_name", "PulsarTest::test_get_topics_partitions",
    "PulsarTest::test_message_router", "PulsarTest::test_null_value_compaction",
    "PulsarTest::test_producer_deduplication",
    "PulsarTest::test_producer_sequence_after_reconnection",
    "PulsarTest::test_publish_compact_and_consume", "PulsarTest::test_reader_on_partitioned_topic",
    "PulsarTest::test_topics_consumer", "PulsarTest::test_topics_pattern_consumer",
    "PulsarTest::test_v2_topics_http", "AsyncioTest::test_get_partitioned_topic_name",
    "AsyncioTest::test_get_topics_partitions", "SchemaTest::test_schema_evolve",
))  # fmt: skip
LEFT_OUT: Final = frozenset((
    # TLS or users.
    "PulsarTest::test_auth_junk_params", "PulsarTest::test_basic_auth",
    "PulsarTest::test_basic_auth_method", "PulsarTest::test_invalid_basic_auth",
    "PulsarTest::test_tls_auth", "PulsarTest::test_tls_auth2", "PulsarTest::test_tls_auth3",
    "PulsarTest::test_tls_encryption_with_other_auth", "PulsarTest::test_token_auth",
    "PulsarTest::test_token_auth_supplier", "AsyncioTest::test_token_auth_supplier_exception",
    # Dials 192.0.2.1.
    "PulsarTest::test_connect_timeout",
))  # fmt: skip
OFFLINE: Final = frozenset(
    (
        "AsyncioSetFutureTest::test_set_future_noop_when_future_already_resolved",
        "AsyncioSetFutureTest::test_set_future_noop_when_future_cancelled",
        "ProtobufNativeSchemaTest::test_encode_decode_nested_message",
        "ProtobufNativeSchemaTest::test_encode_decode_roundtrip",
        "ProtobufNativeSchemaTest::test_encode_produces_protobuf_binary",
        "ProtobufNativeSchemaTest::test_file_descriptor_set_is_valid_base64_proto",
        "ProtobufNativeSchemaTest::test_non_message_class_raises",
        "ProtobufNativeSchemaTest::test_schema_definition_keys",
        "ProtobufNativeSchemaTest::test_schema_definition_values",
        "ProtobufNativeSchemaTest::test_schema_name",
        "ProtobufNativeSchemaTest::test_schema_type",
        "ProtobufNativeSchemaTest::test_wrong_type_raises",
        "PulsarTest::test_connect_error",
        "PulsarTest::test_consumer_config",
        "PulsarTest::test_dead_letter_policy_config",
        "PulsarTest::test_exception_inheritance",
        "PulsarTest::test_json_schema_encode",
        "PulsarTest::test_keyshare_policy",
        "PulsarTest::test_producer_config",
        "PulsarTest::test_service_info_argument_errors",
        "SchemaTest::test_complex",
        "SchemaTest::test_defaults",
        "SchemaTest::test_field_type_check",
        "SchemaTest::test_field_type_check_defaults",
        "SchemaTest::test_initialization",
        "SchemaTest::test_invalid_enum",
        "SchemaTest::test_json_schema_encode_remove_reserved_key",
        "SchemaTest::test_non_sorted_fields",
        "SchemaTest::test_none_value",
        "SchemaTest::test_schema_array_wrong_type",
        "SchemaTest::test_serialize_avro",
        "SchemaTest::test_serialize_json",
        "SchemaTest::test_serialize_schema_complex",
        "SchemaTest::test_serialize_wrong_types",
        "SchemaTest::test_simple",
        "SchemaTest::test_sorted_fields",
        "SchemaTest::test_sub_record_set_to_none",
        "SchemaTest::test_type_promotion",
    )
)
"""They pass without a broker."""


class Tier(NamedTuple):
    """How one part of the suite ended."""

    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: tuple[str, ...]
    expected: int
    """So many pass on a real server with the tests' own settings."""

    @property
    def is_good(self) -> bool:
        """Something ran, and nothing failed."""
        return self.passed > 0 and not self.failed


StartBroker = Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[dict[str, str]]]


def verb(start_broker: StartBroker) -> click.Command:
    """The command; ``start_broker`` makes a broker of our own in a directory."""

    @click.command("pulsar", short_help="pulsar-client-python's own tests.")
    @click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
    @click.option("--grep", default="", help="Only tests whose name contains this.")
    @click.option("--running", is_flag=True, help="Use what listens on 6650 and 8080 already.")
    @click.option("--output", type=click.Path(path_type=Path), help="Write the reports here.")
    @click.option("--json", "is_json", is_flag=True, help="The counts as JSON.")
    def pulsar(
        directory: Path, *, grep: str, running: bool, output: Path | None, is_json: bool
    ) -> None:
        """Run the tests of the pulsar-client-python checkout DIRECTORY."""
        directory = directory.absolute()
        check(directory)
        with contextlib.nullcontext() if running else _broker(start_broker):
            PulsarRest(REST_URL).put("namespaces/public/default-2", {})
            names = _collected(directory)
            tiers = [
                _run(directory, "REST", [n for n in names if _short(n) in REST and grep in n], 14),
                _run(directory, "plain", [n for n in names if _short(n) not in REST and grep in n]),
            ]
        for each, report in tiers:
            if output is not None:
                with output.open("a") as file:
                    file.write(f"==== {each.name}\n{report}\n")
        found = [each for each, _ in tiers]
        _tell(found, is_json=is_json)
        sys.exit(0 if all(each.is_good for each in found if each.passed + each.failed) else 1)

    return pulsar


def check(directory: Path) -> None:
    """Raise when this is no checkout; install what its tests need, once."""
    if not (directory / "tests" / "pulsar_test.py").exists():
        raise PenstockError(f"{directory} is no checkout of apache/pulsar-client-python")
    python = directory / ".venv" / "bin" / "python"
    if (directory / ".venv" / "ready").exists():
        return
    click.echo("installing the client's wheel into the checkout (once) ...", err=True)
    wanted = (f"pulsar-client[all]=={VERSION}", "pytest", "pytest-timeout", "requests")
    for command in (
        [sys.executable, "-m", "venv", ".venv"],
        [str(python), "-m", "pip", "install", "-q", *wanted],
    ):
        if subprocess.run(command, cwd=directory, check=False).returncode:
            raise PenstockError(f"{' '.join(command)} failed in {directory}")
    (directory / ".venv" / "ready").touch()


@contextlib.contextmanager
def _broker(start_broker: StartBroker) -> Iterator[None]:
    for port in (BINARY_PORT, REST_PORT):
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), 1):
            raise PenstockError(
                f"something listens on {port} already; stop it, or test it with --running"
            )
    with (
        tempfile.TemporaryDirectory(prefix="penstock-interop-") as scratch,
        start_broker(Path(scratch, "data"), FLAGS),
    ):
        yield


def _pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    run = [
        str(directory / ".venv" / "bin" / "python"), "-m", "pytest", "-q",
        "-p", "no:cacheprovider", "-W", "ignore", "--timeout", str(TEST_SECONDS_MAX), *arguments,
    ]  # fmt: skip
    return subprocess.run(
        run,
        cwd=directory / "tests",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Test modules import each other by their names.
        env={**os.environ, "PYTHONPATH": str(directory / "tests")},
        timeout=SUITE_SECONDS_MAX,
        check=False,
    )


def _collected(directory: Path) -> list[str]:
    """Node ids of all tests that can be run here."""
    done = _pytest(directory, "--collect-only", *FILES)
    found = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if "::" in line]
    wanted = [line.rpartition("/")[2] for line in found]
    return [each for each in wanted if _short(each) not in LEFT_OUT | OFFLINE]


def _short(node: str) -> str:
    return node.partition("::")[2]


def _run(directory: Path, name: str, nodes: Sequence[str], expected: int = 107) -> tuple[Tier, str]:
    if not nodes:
        return Tier(name, 0, 0, 0, 0.0, (), expected), ""
    with tempfile.TemporaryDirectory(prefix="penstock-interop-") as scratch:
        report = Path(scratch, "report.xml")
        began = time.monotonic()
        done = _pytest(directory, "-rfE", f"--junitxml={report}", *nodes)
        seconds = time.monotonic() - began
        text = done.stdout.decode("utf-8", "replace")
        if not report.exists():
            raise PenstockError(f"pytest gave no report; it said:\n{text[-2000:]}")
        passed, skipped, bad = counted(report)
    return Tier(name, passed, len(bad), skipped, round(seconds, 1), tuple(bad), expected), text


def counted(report: Path) -> tuple[int, int, list[str]]:
    """Passed, skipped, and the names of those that failed, of a JUnit report."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad, skipped = [], 0
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            bad.append(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
    return len(cases) - len(bad) - skipped, skipped, bad


def _tell(tiers: Sequence[Tier], *, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps([each._asdict() for each in tiers], indent=2))
        return
    for tier in tiers:
        for each in tier.failures:
            click.echo(f"failed: {each}")
        click.echo(
            f"{tier.name}: {tier.passed} passed, {tier.failed} failed, {tier.skipped} skipped, "
            f"{tier.seconds:.0f} s (a real Pulsar passes {tier.expected})"
        )
