"""``penstock settings``: the three forms of its output."""

import json
import tomllib

import pytest

from penstock.cli.main import main
from penstock.settings.load import KINDS


def printed(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["settings", *arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_text_is_toml_with_every_setting(capsys):
    tables = tomllib.loads(printed(capsys, "--amqp", "0"))
    assert sum(len(table) for table in tables.values()) == len(KINDS)
    assert tables["listeners"]["amqp"] == "0"


def test_json_has_value_and_origin_of_every_setting(capsys):
    rows = json.loads(printed(capsys, "--json", "--durability", "os"))
    assert len(rows) == len(KINDS)
    (row,) = [each for each in rows if each["name"] == "storage.durability"]
    assert (row["value"], row["origin"]) == ("os", "flag --durability")


def test_markdown_is_the_reference_page_whatever_the_flags(capsys):
    page = printed(capsys, "--markdown", "--durability", "os")
    assert page.startswith("# Settings")
    assert "| `durability` | `fsync` | `--durability` |" in page
