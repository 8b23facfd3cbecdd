"""Log lines: the message stays constant, the facts follow it, in text and in JSON."""

import json
import logging
import sys

import pytest

from penstock.telemetry.log_format import JsonFormatter, TextFormatter, set_up_logging


def record(message="a stage is held", *, error=None, **extra):
    made = logging.makeLogRecord(
        {
            "name": "penstock.server.pump",
            "levelname": "INFO",
            "msg": message,
            "created": 1_700_000_000.25,
            "msecs": 250.0,
            "exc_info": error,
        }
    )
    vars(made).update(extra)
    return made


def test_text_shows_the_fields_after_the_message():
    line = TextFormatter().format(record(connection=7, reason="low on disk"))
    assert line.endswith("INFO server.pump: a stage is held  connection=7 reason='low on disk'")


def test_json_has_the_same_facts_as_fields():
    line = json.loads(JsonFormatter().format(record(connection=7, peer=("::1", 5))))
    assert line["message"] == "a stage is held"
    assert line["connection"] == 7
    assert line["level"] == "info"
    assert line["peer"] == ["::1", 5]


def test_a_traceback_is_kept_in_both():
    try:
        raise ValueError("oops")
    except ValueError:
        made = record(error=sys.exc_info())
    assert "ValueError: oops" in TextFormatter().format(made)
    assert "ValueError: oops" in json.loads(JsonFormatter().format(made))["traceback"]


def test_what_cannot_be_json_becomes_text():
    assert json.loads(JsonFormatter().format(record(culprit={1})))["culprit"] == "{1}"


def test_libraries_are_quiet_and_we_are_as_loud_as_told():
    root = logging.getLogger()
    ours = logging.getLogger("penstock")
    before = (root.handlers[:], root.level, ours.level)
    try:
        set_up_logging("debug", is_json=True)
        assert ours.isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("asyncio").isEnabledFor(logging.INFO)
    finally:
        root.handlers[:], level, our_level = before
        root.setLevel(level)
        ours.setLevel(our_level)


@pytest.mark.parametrize(
    "made", ["g\n2026-01-01 ERROR forged", "g\x1b]0;x\x07", "g\u2028x", "g\rx"]
)
def test_no_value_and_no_message_ends_a_line_or_moves_the_cursor(made):
    made = made.replace(" ", "_")
    line = TextFormatter().format(record(f"no group {made}", group=made))
    assert line.isprintable()
    assert "group='g" in line
