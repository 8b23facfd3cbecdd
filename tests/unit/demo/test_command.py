import json
from importlib import import_module

from click.testing import CliRunner

from penstock.demo import command as demo
from penstock.demo.command import command
from penstock.demo.scenes import SCENES, module_of


def test_the_scenes_are_listed_with_what_they_show():
    result = CliRunner().invoke(command, ["--list"])
    assert result.exit_code == 0
    for name, summary in SCENES.items():
        assert name in result.output
        assert summary in result.output


def test_the_list_is_there_as_json():
    result = CliRunner().invoke(command, ["--list", "--json"])
    assert [each["name"] for each in json.loads(result.output)] == list(SCENES)


def test_an_unknown_scene_is_a_usage_error_that_names_the_known_ones():
    result = CliRunner().invoke(command, ["store-held"])
    assert result.exit_code == 2
    assert "store-hold" in result.output


def test_every_scene_has_a_file_that_can_be_played():
    for name in SCENES:
        assert callable(import_module(module_of(name)).play)


def test_the_whole_story_without_spark_is_a_usage_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 2
    assert "penstock-broker[spark]" in result.output
    assert "--list" in result.output
