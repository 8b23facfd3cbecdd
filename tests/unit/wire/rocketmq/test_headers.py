import pytest

from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.headers import (
    NotificationAnswer,
    OffsetAnswer,
    PopHeader,
    PullAnswer,
    PullFlag,
    PullHeader,
    QueryMessageHeader,
    QueryOffsetHeader,
    SendAnswer,
    SendBackHeader,
    SendHeader,
    UnregisterHeader,
    UpdateOffsetHeader,
    fields,
    parse,
    parse_send_header,
)

PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "3",
    "queueOffset": "17",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "1731700000000",
}


def test_a_pull_is_read_and_unknown_fields_are_ignored():
    header = parse(PullHeader, Command(11, {**PULL, "Signature": "x", "ns": "", "oway": "false"}))
    assert (header.consumer_group, header.queue_id, header.queue_offset) == ("g", 3, 17)
    assert header.sys_flag == PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
    assert header.expression_type is None


def test_a_header_goes_back_into_the_text_map_it_came_from():
    header = parse(PullHeader, Command(11, PULL))
    assert fields(header) == PULL


def test_none_is_left_out_and_booleans_are_lower_case():
    assert fields(NotificationAnswer(has_msg=True)) == {"hasMsg": "true", "pollingFull": "false"}
    assert fields(SendBackHeader(offset=7, group="g")) == {
        "offset": "7",
        "group": "g",
        "delayLevel": "0",
        "unitMode": "false",
    }


def test_a_missing_field_is_named():
    ext = {name: value for name, value in PULL.items() if name != "queueOffset"}
    with pytest.raises(Malformed, match=r"PullHeader: .*missing required field `queueOffset`") as e:
        parse(PullHeader, Command(11, ext, opaque=5))
    assert e.value.opaque == 5


@pytest.mark.parametrize("value", ["x", "2147483648", "-2147483649", "1e99", "9" * 5000])
def test_a_field_that_is_no_int_is_named(value):
    with pytest.raises(Malformed, match=r"\$\.queueId"):
        parse(PullHeader, Command(11, {**PULL, "queueId": value}))


def test_empty_values_count_as_missing_where_text_would_not_do():
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "setZeroIfNotFound": ""}
    assert parse(QueryOffsetHeader, Command(14, ext)).set_zero_if_not_found is None
    assert parse(UnregisterHeader, Command(35, {"clientID": "c", "consumerGroup": ""})) == (
        UnregisterHeader(client_id="c", consumer_group="")
    )


def test_ali_ons_may_commit_minus_one():
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "-1"}
    assert parse(UpdateOffsetHeader, Command(15, ext)).commit_offset == -1


def test_the_unique_key_query_flag_keeps_its_odd_name():
    header = parse(
        QueryMessageHeader, Command(12, {"topic": "T", "key": "k", "_UNIQUE_KEY_QUERY": "true"})
    )
    assert header.unique_key_query
    assert fields(header)["_UNIQUE_KEY_QUERY"] == "true"


def test_pop_has_the_documented_defaults():
    header = parse(PopHeader, Command(200050, {"consumerGroup": "g", "topic": "T"}))
    assert (header.queue_id, header.max_msg_nums, header.order) == (-1, 32, False)


def test_answers_are_read_by_the_client():
    answer = PullAnswer(next_begin_offset=5, min_offset=0, max_offset=9)
    assert parse(PullAnswer, Command(0, fields(answer))) == answer
    assert parse(OffsetAnswer, Command(0, {"offset": "77"})).offset == 77
    sent = SendAnswer(msg_id="A", queue_id=1, queue_offset=2, msg_region="R", trace_on=True)
    assert fields(sent)["MSG_REGION"] == "R"
    assert parse(SendAnswer, Command(0, fields(sent))) == sent


LETTERS = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "-1", "i": "p", "k": "true", "l": "5"}


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.SEND_MESSAGE_V2, LETTERS),
        (RequestCode.SEND_BATCH_MESSAGE, LETTERS),
        (
            RequestCode.SEND_BATCH_MESSAGE,
            {
                "producerGroup": "g",
                "topic": "T",
                "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "4",
                "queueId": "-1",
                "properties": "p",
                "unitMode": "true",
                "maxReconsumeTimes": "5",
            },
        ),
    ],
    ids=["letters", "batch in letters", "batch in names"],
)
def test_sends_are_one_header_however_their_fields_are_named(code, ext):
    header = parse_send_header(Command(code, ext))
    names = SendHeader.__struct_fields__
    assert [getattr(header, name) for name in names] == [
        "g", "T", "TBW102", 4, -1, 0, 0, 0, "p", 0, True, 5, False, None,
    ]  # fmt: skip
    assert fields(header).items() >= ext.items()


def test_codes_are_the_numbers_of_the_protocol():
    assert RequestCode.CHANGE_MESSAGE_INVISIBLETIME == 200053
    assert RequestCode(361) is RequestCode.LITE_PULL_MESSAGE
    assert (ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY) == (215, 1500)
