import pytest
from msgspec.structs import replace

from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.message_id import encode_host
from penstock.wire.rocketmq.stored import (
    StoredMessage,
    SysFlag,
    decode_stored,
    encode_stored,
    placed,
    retopic,
)

V4, V6 = encode_host("10.0.0.1", 1), encode_host("2001:db8::7", 2)
HALF = StoredMessage(
    topic="RMQ_SYS_TRANS_HALF_TOPIC",
    body=b"hello",
    properties=b"REAL_TOPIC\x01Orders\x02",
    queue_offset=5,
    commit_log_offset=100,
    flag=9,
    sys_flag=SysFlag.MULTI_TAGS,
    born_ms=1,
    store_ms=2,
    reconsume_times=3,
    prepared_offset=4,
    body_crc=12345,
)


@pytest.fixture(params=[(V4, V4), (V6, V4), (V4, V6), (V6, V6)], ids=["44", "64", "46", "66"])
def half(request):
    born, store = request.param
    return replace(HALF, born_host=born, store_host=store)


def test_a_message_is_shown_at_another_place_and_otherwise_untouched(half):
    shown = placed(encode_stored(half), 7, 8, 9)
    assert decode_stored(shown)[0] == replace(half, queue_id=7, queue_offset=8, commit_log_offset=9)


@pytest.mark.parametrize("topic", ["Orders", "%RETRY%" + "g" * 200, ""])
def test_a_message_is_shown_under_another_topic_and_otherwise_untouched(half, topic):
    origin = encode_stored(half)
    shown = retopic(origin, topic)
    assert decode_stored(shown) == (replace(half, topic=topic), len(shown))
    assert retopic(shown, half.topic) == origin


def test_what_changes_with_the_topic_can_be_changed(half):
    shown = retopic(
        encode_stored(half),
        "Orders",
        properties=b"a\x01b\x02",
        reconsume_times=1,
        prepared_offset=100,
        sys_flag=SysFlag.TRANSACTION_COMMIT,
    )
    assert decode_stored(shown)[0] == replace(
        half,
        topic="Orders",
        properties=b"a\x01b\x02",
        reconsume_times=1,
        prepared_offset=100,
        sys_flag=int(SysFlag.TRANSACTION_COMMIT),
    )


def test_what_does_not_fit_is_refused():
    with pytest.raises(Malformed, match="limit 32767"):
        retopic(encode_stored(HALF), "T", properties=b"p" * 32768)
    with pytest.raises(Malformed, match="cannot be changed"):
        retopic(b"short", "T")
