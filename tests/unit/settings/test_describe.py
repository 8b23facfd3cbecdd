"""Printing settings: for a person, for a program, for the reference page."""

from pathlib import Path

from penstock.settings.describe import as_markdown, as_rows, as_text, describe
from penstock.settings.load import KINDS, Given, Settings, load_settings

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def test_every_setting_is_described_once_with_a_meaning():
    described = describe(Settings())
    assert [each.key for each in described] == list(KINDS)
    assert [each.key for each in described if len(each.doc) < 15] == []


def test_the_printed_text_is_a_settings_file_that_gives_the_same_settings(tmp_path):
    given = [
        Given("storage.write_buffer_bytes", "1MiB", "flag --set"),
        Given("broker.data", 'a "quoted" \\ path', "flag --data"),
        Given("broker.faults", True, "flag --faults"),
    ]
    settings = load_settings(given)
    file = tmp_path / "printed.toml"
    file.write_text("\n".join(as_text(settings)), "utf-8")
    assert load_settings(config=file) == settings


def test_a_line_says_value_origin_and_meaning():
    settings = load_settings([Given("flow.memory_limit", "2GiB", "flag --memory-limit")])
    (line,) = [each for each in as_text(settings) if each.startswith("memory_limit")]
    assert line.startswith('memory_limit = "2GiB"')
    assert "# flag --memory-limit | F3: memory alarm" in line


def test_rows_for_programs_carry_every_name_one_can_set_it_by():
    (row,) = [each for each in as_rows(Settings()) if each["name"] == "storage.durability"]
    assert row["value"] == row["default"] == "fsync"
    assert row["origin"] == "default"
    assert row["variable"] == "PENSTOCK_STORAGE_DURABILITY"
    assert row["flag"] == "--durability"


def test_the_reference_page_is_in_step_with_the_code():
    written = REFERENCE.read_text("utf-8")
    assert written == as_markdown(), (
        "run: ./penstock settings --markdown > docs/reference/settings.md"
    )
