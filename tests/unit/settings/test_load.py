"""Where a value comes from, which source wins, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import SettingsError
from penstock.settings.load import (
    KINDS,
    Given,
    Settings,
    load_settings,
    service_links,
    variable_name,
)

KEY = "flow.queue_log_credit"
VARIABLE = "PENSTOCK_FLOW_QUEUE_LOG_CREDIT"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "penstock.toml"
    path.write_text("[flow]\nqueue_log_credit = 5000\n", "utf-8")
    return path


def test_without_any_source_everything_is_a_default():
    settings = load_settings()
    assert settings == Settings()
    assert {settings.origin(key) for key in KINDS} == {"default"}


def test_a_file_goes_before_the_default(file):
    settings = load_settings(config=file)
    assert settings.flow.queue_log_credit == 5000
    assert settings.origin(KEY) == f"file {file}"


def test_a_variable_goes_before_the_file(file):
    settings = load_settings(environ={VARIABLE: "6000"}, config=file)
    assert settings.flow.queue_log_credit == 6000
    assert settings.origin(KEY) == f"environment {VARIABLE}"


def test_a_flag_goes_before_all(file):
    flags = [Given(KEY, "7000", "flag --set")]
    settings = load_settings(flags, environ={VARIABLE: "6000"}, config=file)
    assert settings.flow.queue_log_credit == 7000
    assert settings.origin(KEY) == "flag --set"


def test_the_file_may_be_named_by_a_variable(file):
    settings = load_settings(environ={"PENSTOCK_CONFIG": str(file)})
    assert settings.flow.queue_log_credit == 5000


def test_variables_of_other_programs_and_of_the_start_script_are_left_alone():
    assert load_settings(environ={"HOME": "x", "PENSTOCK_PYTHON": "python3"}) == Settings()


def test_every_setting_has_its_own_variable():
    assert len({variable_name(key) for key in KINDS}) == len(KINDS)


@given(st.sampled_from(sorted(KINDS)))
def test_every_default_can_be_given_as_text_again(key):
    part, _, name = key.partition(".")
    default = getattr(getattr(Settings(), part), name)
    if default != "":
        settings = load_settings(environ={variable_name(key): str(default)})
        assert getattr(getattr(settings, part), name) == default


def test_a_misspelt_variable_names_the_nearest():
    with pytest.raises(SettingsError, match="did you mean PENSTOCK_FLOW_QUEUE_LOG_CREDIT"):
        load_settings(environ={"PENSTOCK_FLOW_QUEUE_LOG_CREDITS": "1"})


def test_a_misspelt_key_in_a_file_names_the_nearest_and_the_file(file):
    file.write_text("[flow]\nqueue_log_credits = 1\n", "utf-8")
    with pytest.raises(SettingsError, match=r"penstock\.toml.*did you mean flow.queue_log_credit"):
        load_settings(config=file)


def test_a_misspelt_section_names_the_nearest(file):
    file.write_text("[flwo]\nqueue_log_credit = 1\n", "utf-8")
    with pytest.raises(SettingsError, match=r"unknown section 'flwo'.*did you mean flow"):
        load_settings(config=file)


def test_a_key_outside_any_section_is_told_where_settings_live(file):
    file.write_text("durability = 'os'\n", "utf-8")
    with pytest.raises(SettingsError, match=r"outside any section.*\[storage\]"):
        load_settings(config=file)


def test_a_key_far_from_any_other_is_refused_without_a_guess():
    with pytest.raises(SettingsError, match="unknown setting zzz") as caught:
        load_settings([Given("zzz", "1", "flag --set")])
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("content", ["[flow\n", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused_by_name(file, content):
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError, match=r"penstock\.toml is not valid TOML"):
        load_settings(config=file)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(SettingsError, match=r"cannot read .*missing\.toml.*--config"):
        load_settings(config=tmp_path / "missing.toml")


def test_a_wrong_value_says_which_setting_from_where_and_what_would_be_right():
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={VARIABLE: "lots"})
    assert str(caught.value) == (
        f"flow.queue_log_credit is 'lots' (environment {VARIABLE}); it takes a whole number"
    )


def test_a_broken_relation_between_settings_says_who_set_them():
    with pytest.raises(SettingsError, match=r"queue_log_more is 800.*\(flag --set\)"):
        load_settings([Given(KEY, "100", "flag --set")])


def test_without_a_name_server_the_rocketmq_broker_is_off_too():
    settings = load_settings([Given("listeners.rocketmq", "off", "flag --rocketmq")])
    assert settings.listeners.rocketmq_broker == "off"
    assert settings.origin("listeners.rocketmq_broker") == "follows listeners.rocketmq"


def test_the_rocketmq_broker_stays_on_when_it_is_asked_for():
    settings = load_settings(
        [
            Given("listeners.rocketmq", "off", "flag --rocketmq"),
            Given("listeners.rocketmq_broker", "10911", "flag --rocketmq-broker"),
        ]
    )
    assert settings.listeners.port("rocketmq_broker") == 10911


LINKS = {
    "PENSTOCK_SERVICE_HOST": "10.0.0.1",
    "PENSTOCK_SERVICE_PORT": "5672",
    "PENSTOCK_SERVICE_PORT_AMQP": "5672",
    "PENSTOCK_PORT": "tcp://10.0.0.1:5672",
    "PENSTOCK_PORT_5672_TCP": "tcp://10.0.0.1:5672",
    "PENSTOCK_PORT_5672_TCP_PROTO": "tcp",
    "PENSTOCK_PORT_5672_TCP_PORT": "5672",
    "PENSTOCK_PORT_5672_TCP_ADDR": "10.0.0.1",
    "PENSTOCK_CANARY_SERVICE_HOST": "10.0.0.2",
    "PENSTOCK_CANARY_PORT": "tcp://10.0.0.2:5672",
}
"""What every pod finds beside services named penstock and penstock-canary."""


def test_what_kubernetes_sets_for_a_service_of_our_name_is_passed_over():
    assert load_settings(environ=LINKS) == load_settings()
    assert service_links(LINKS) == sorted(LINKS)


@pytest.mark.parametrize(
    ("name", "value"), [("PENSTOCK_HTTP_PORT", "80"), ("PENSTOCK_PORT", "5672")]
)
def test_a_misspelt_setting_of_a_port_is_no_service_link(name, value):
    with pytest.raises(SettingsError, match=f"unknown environment variable {name}"):
        load_settings(environ={name: value})
