"""Flag, environment, ready file, default port: in this order, for every verb."""

import click
import pytest
from click.testing import CliRunner

from penstock.cli.endpoint import HTTP, NAME_SERVER, find_endpoint, takes_endpoint
from penstock.cli.main import penstock
from penstock.model.errors import NotFound, PenstockError
from penstock.server.ready_file import write_ready


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """A directory of its own, and nothing in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in (HTTP.variable, NAME_SERVER.variable, "PENSTOCK_BROKER_DATA"):
        monkeypatch.delenv(name, raising=False)


def ready(directory, **endpoints):
    directory.mkdir()
    write_ready(directory / "ready.json", endpoints)
    return directory


def test_a_flag_wins_and_needs_no_word(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(HTTP.variable, "h:2")
    data = ready(tmp_path / "other", http="h:3")
    assert find_endpoint(HTTP, "h:1", data) == "h:1"
    assert find_endpoint(HTTP, "", data) == "h:3"
    assert capsys.readouterr().err == ""


def test_the_environment_goes_before_the_directory_and_is_said(tmp_path, monkeypatch, capsys):
    ready(tmp_path / "penstock-data", http="h:3", rocketmq="h:4")
    monkeypatch.setenv(HTTP.variable, "h:2")
    assert find_endpoint(HTTP, "", None) == "h:2"
    assert capsys.readouterr().err == "penstock: HTTP port h:2, from PENSTOCK_ENDPOINT\n"
    monkeypatch.setenv("NAMESRV_ADDR", "n:1")
    assert find_endpoint(NAME_SERVER, "", None) == "n:1"


def test_the_broker_of_the_directory_one_is_in_is_found_without_a_word(tmp_path, capsys):
    ready(tmp_path / "penstock-data", http="h:3", rocketmq="h:4")
    assert find_endpoint(HTTP, "", None) == "h:3"
    assert find_endpoint(NAME_SERVER, "", None) == "h:4"
    assert capsys.readouterr().err == ""


def test_the_data_directory_of_up_is_the_one_that_is_looked_into(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_BROKER_DATA", str(ready(tmp_path / "elsewhere", http="h:5")))
    assert find_endpoint(HTTP, "", None) == "h:5"


def test_the_default_port_comes_last_and_is_said(capsys):
    assert find_endpoint(NAME_SERVER, "", None) == "127.0.0.1:9876"
    assert find_endpoint(HTTP, "", None) == "127.0.0.1:15672"
    said = capsys.readouterr().err
    assert "HTTP port 127.0.0.1:15672, the default: no broker is ready on penstock-data" in said


def test_a_directory_that_was_named_is_never_passed_over(tmp_path):
    with pytest.raises(NotFound, match="give --name-server"):
        find_endpoint(NAME_SERVER, "", tmp_path)


def test_a_broker_without_that_port_is_not_taken_for_another(tmp_path):
    ready(tmp_path / "penstock-data", amqp="h:6")
    with pytest.raises(PenstockError, match="has no HTTP port; start it with --http"):
        find_endpoint(HTTP, "", None)


def test_who_asks_every_second_is_told_once():
    @click.command
    @takes_endpoint
    def watch(data, endpoint):
        for _ in range(3):
            find_endpoint(HTTP, endpoint, data)

    assert CliRunner().invoke(watch).stderr.count("the default") == 1


def leaves(command, words=()):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), (*words, name))
    else:
        yield " ".join(words), {name for each in command.params for name in each.opts}


def test_every_verb_that_asks_a_broker_can_be_told_which_in_the_same_words():
    asking = {name: options for name, options in leaves(penstock) if "--data" in options}
    own = {"up", "settings", "doctor", "interop"}
    for name, options in asking.items():
        assert name in own or options & {"--endpoint", "--name-server", "--flight"}, name
    assert {"publish", "consume", "why", "topics purge", "connections close"} <= set(asking)
