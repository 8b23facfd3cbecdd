"""SET_MESSAGE_REQUEST_MODE: a group pulls or pops a topic, and a restart remembers which."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.groups import MODE_KIND
from penstock.engine.group.assignment import ConsumeMode, ModeSetting
from penstock.wire.rocketmq.bodies import encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    return RocketmqBench()


def set_mode(bench, **more):
    body = {"topic": "orders", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 3, **more}
    return bench.client().ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, encode_body(body))


def test_the_usual_mode_is_pull_without_a_share(bench):
    assert bench.broker.modes.get("orders", "g") == ModeSetting(ConsumeMode.PULL, -1)


def test_a_mode_is_set_for_one_group_on_one_topic(bench):
    assert set_mode(bench).code == 0
    assert bench.broker.modes.get("orders", "g") == ModeSetting(ConsumeMode.POP, 3)
    assert bench.broker.modes.get("orders", "h").mode is ConsumeMode.PULL
    assert bench.broker.modes.get("other", "g").mode is ConsumeMode.PULL


def test_a_mode_survives_a_restart_and_can_be_set_back(bench):
    set_mode(bench)
    bench.settle()
    bench.kill()
    assert bench.broker.modes.get("orders", "g") == ModeSetting(ConsumeMode.POP, 3)
    set_mode(bench, mode="PULL")
    bench.stop()
    assert bench.broker.modes.get("orders", "g").mode is ConsumeMode.PULL


def test_retry_topics_are_refused(bench):
    answer = set_mode(bench, topic="%RETRY%g")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "retry topic is not allowed to set mode"
    assert bench.engine.definitions(MODE_KIND) == {}


@pytest.mark.parametrize(
    "more", [{"topic": ""}, {"consumerGroup": ""}, {"mode": "PUSH"}], ids=["topic", "group", "mode"]
)
def test_nonsense_is_refused(bench, more):
    assert set_mode(bench, **more).code == ResponseCode.SYSTEM_ERROR
    assert len(bench.broker.modes) == 0


@pytest.mark.parametrize("more", [{"topic": "a\x1b"}, {"consumerGroup": "g\n"}])
def test_a_control_character_in_a_name_is_refused(bench, more):
    answer = set_mode(bench, **more)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "has a control character; remove it" in answer.remark
    assert bench.engine.definitions(MODE_KIND) == {}


def test_settings_are_bounded(bench):
    bench.broker.modes.settings_max = 1
    assert set_mode(bench).code == 0
    assert set_mode(bench, topic="other").code == ResponseCode.SYSTEM_ERROR


def test_a_row_that_cannot_be_read_does_not_stop_the_broker(bench, caplog):
    bench.engine.define(MODE_KIND, "odd", b"{")
    bench.settle()
    bench.kill()
    assert "a mode cannot be read" in caplog.text


def test_a_deleted_topic_takes_its_modes_along(bench):
    bench.client().send("orders", b"a")
    set_mode(bench)
    set_mode(bench, topic="other")
    answer = bench.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert answer.code == 0
    assert list(bench.engine.definitions(MODE_KIND)) == ["other@g"]
    assert bench.broker.modes.get("orders", "g").mode is ConsumeMode.PULL


def test_a_deleted_group_takes_its_modes_along(bench):
    set_mode(bench)
    set_mode(bench, consumerGroup="h")
    bench.client().ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    assert list(bench.engine.definitions(MODE_KIND)) == ["orders@h"]
