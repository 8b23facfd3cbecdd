"""``penstock interop``: what it reads from another project's report, and what it refuses."""

import json
import socket
import urllib.request

import pytest
from click.testing import CliRunner

from kit import interop
from kit.interop import private_broker
from penstock.model.errors import PenstockError

REPORT = """
  test/channel.test.js
    \u2713 should connect ok
    1) should invoke ok though channel not ready
    2) should be something else


  90 passing (6s)
  3 pending
  2 failing

  1) test/channel.test.js
       should invoke ok though channel not ready:
     AssertionError
"""


def test_counts_are_those_of_the_report_and_access_control_is_set_apart():
    part = interop._counted("rest", REPORT, 7.04)
    assert part == interop.Part("rest", 90, 1, 1, 3, 7.0)
    assert not part.is_good


def test_only_failures_for_access_control_are_good_enough():
    report = REPORT.replace("    2) should be something else\n", "").replace(
        "2 failing", "1 failing"
    )
    assert interop._counted("rest", report, 1).is_good


def test_a_suite_that_did_not_run_is_not_good():
    assert not interop._counted("rest", "Error: cannot find module", 1).is_good


def test_parts_that_want_brokers_of_their_own_get_them(tmp_path):
    for name in ("index.test.js", "index_namesrv.test.js", "channel.test.js", "store/a.test.js"):
        path = tmp_path / "test" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert interop._parts(tmp_path) == {
        "rest": ["test/channel.test.js", "test/store/a.test.js"],
        "index.test": ["test/index.test.js"],
        "index_namesrv.test": ["test/index_namesrv.test.js"],
    }


def test_a_directory_that_is_no_checkout_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(interop.shutil, "which", lambda tool: tool)
    (tmp_path / "package.json").write_text(json.dumps({"name": "other"}))
    result = CliRunner().invoke(interop.command, ["ali-ons", str(tmp_path)])
    assert isinstance(result.exception, PenstockError)
    assert "no checkout of ali-ons" in str(result.exception)


@pytest.mark.parametrize("tool", ["node", "npm"])
def test_a_missing_tool_is_named(tmp_path, monkeypatch, tool):
    monkeypatch.setattr(interop.shutil, "which", lambda name: None if name == tool else name)
    result = CliRunner().invoke(interop.command, ["ali-ons", str(tmp_path)])
    assert f"{tool} is not installed" in str(result.exception)


def test_every_look_up_is_answered_with_the_name_server():
    with interop._lookup_server() as port:
        url = f"http://127.0.0.1:{port}/rocketmq/nsaddr4client-internet"
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert answer.read() == b"127.0.0.1:9876;"


# ---- private broker -----------------------------------------------------------------------------
# A broker for the time of a command: it is there, it ends, and why it did not start is told.


FLAGS = (
    "--bind", "127.0.0.1", "--amqp", "0", "--http", "off", "--pulsar", "off",
    "--rocketmq", "off", "--rocketmq-broker", "off", "--flight", "off",
)  # fmt: skip


def test_it_is_there_and_then_it_is_gone(tmp_path):
    with private_broker(tmp_path / "a", FLAGS) as endpoints:
        host, _, port = endpoints["amqp"].rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=5)


def test_what_it_said_is_in_the_error(tmp_path):
    with (
        pytest.raises(PenstockError, match=r"did not start(.|\n)*--no-such-flag"),
        private_broker(tmp_path / "a", ("--no-such-flag",)),
    ):
        pass
