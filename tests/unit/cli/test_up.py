"""``penstock up``: flags become settings, errors keep the server from being started."""

import sys
from types import ModuleType

import pytest

from penstock.cli.main import main
from penstock.model.errors import StartRefused


@pytest.fixture
def started(monkeypatch):
    """The settings that ``up`` handed to the server, which here only notes them."""
    handed = []
    fake = ModuleType("penstock.server.lifecycle")
    fake.run = lambda settings: handed.append(settings) or 0
    monkeypatch.setitem(sys.modules, "penstock.server.lifecycle", fake)
    return handed


def up(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["up", *arguments])
    return ended.value.code


def test_without_flags_the_defaults_are_used(started):
    assert up() == 0
    assert started[0].broker.data == "./penstock-data"
    assert started[0].listeners.addresses == ("127.0.0.1", "::1")


def test_every_flag_reaches_its_setting(started):
    flags = (
        *("--data", "d", "--bind", "0.0.0.0", "--insecure", "--ready-file", "r", "--faults"),
        *("--rocketmq", "1", "--rocketmq-broker", "2", "--amqp", "3", "--pulsar", "4"),
        *("--flight", "0", "--http", "off", "--durability", "interval:50"),
        *("--memory-limit", "1GiB", "--disk-free-limit", "2GiB"),
    )
    assert up(*flags) == 0
    (settings,) = started
    assert settings.broker.data == "d"
    assert settings.broker.ready_file == "r"
    assert settings.broker.faults is True
    listeners = settings.listeners
    ports = [listeners.port(p) for p in ("rocketmq", "rocketmq_broker", "amqp", "pulsar")]
    assert ports == [1, 2, 3, 4]
    assert (listeners.port("flight"), listeners.port("http")) == (0, None)
    assert (listeners.bind, listeners.insecure) == ("0.0.0.0", True)
    assert settings.storage.durability == "interval:50"
    assert (settings.flow.memory_limit, settings.flow.disk_free_limit) == ("1GiB", "2GiB")
    assert settings.origin("storage.durability") == "flag --durability"


def test_any_setting_can_be_set_and_the_last_word_counts(started):
    up("--set", "flow.queue_log_credit=8000", "--set", "flow.queue_log_credit=9000")
    assert started[0].flow.queue_log_credit == 9000


def test_a_switch_that_is_not_given_leaves_the_environment_its_say(started, monkeypatch):
    monkeypatch.setenv("PENSTOCK_BROKER_FAULTS", "on")
    up()
    assert started[0].broker.faults is True


def test_a_file_is_read(started, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('[broker]\nname = "west"\n', "utf-8")
    up("--config", str(file))
    assert started[0].broker.name == "west"


@pytest.mark.parametrize(
    "flags", [("--set", "flow"), ("--amqp", "high"), ("--bind", "0.0.0.0"), ("--set", "a.b=c")]
)
def test_wrong_settings_start_nothing(started, flags):
    assert up(*flags) == 2
    assert started == []


def test_the_exit_code_of_the_server_is_the_exit_code(started, monkeypatch):
    monkeypatch.setattr(sys.modules["penstock.server.lifecycle"], "run", lambda settings: 5)
    assert up() == 5


def test_a_refused_start_is_one_sentence_and_code_3(started, monkeypatch, capsys):
    def refuse(settings):
        raise StartRefused("port 5672 is taken; use --amqp PORT")

    monkeypatch.setattr(sys.modules["penstock.server.lifecycle"], "run", refuse)
    assert up() == 3
    assert capsys.readouterr().err == "penstock: port 5672 is taken; use --amqp PORT\n"
