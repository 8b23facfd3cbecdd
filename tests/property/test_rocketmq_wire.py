"""Laws of RocketMQ's bytes: what is written is what is read, whatever is in it."""

import struct

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.format import decode as decode_entry
from penstock.log.format import encode as encode_entry
from penstock.wire.rocketmq.bodies import standard_json
from penstock.wire.rocketmq.command import Command, Language, Serialization
from penstock.wire.rocketmq.frames import RemotingFrames, decode, encode, parse_send, send_of
from penstock.wire.rocketmq.headers import PullHeader, fields, parse
from penstock.wire.rocketmq.message_id import offset_message_id, parse_offset_message_id
from penstock.wire.rocketmq.properties import (
    format_properties,
    parse_properties,
    value_of,
    with_property,
    without_properties,
)
from penstock.wire.rocketmq.stored import (
    BatchItem,
    StoredMessage,
    decode_all,
    decode_stored,
    encode_stored,
    join_batch,
    placed,
    record_of,
    retopic,
    split_batch,
)

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=30)
NAMES = st.text(
    st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=12
)
VALUES = st.text(st.characters(exclude_characters="\x02", codec="utf-8"), min_size=1, max_size=12)
PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=8)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))

JSON_COMMANDS = st.builds(
    Command,
    code=I32,
    ext=st.dictionaries(TEXT, TEXT, max_size=10),
    body=st.binary(max_size=60),
    opaque=I32,
    flag=I32,
    remark=st.none() | TEXT,
    language=st.sampled_from(list(Language)).map(int),
    version=I32,
    serialization=st.just(int(Serialization.JSON)),
)
BINARY_COMMANDS = st.builds(
    Command,
    code=st.integers(-32767, 32767),
    ext=st.dictionaries(st.text(min_size=1, max_size=9), st.text(min_size=1), max_size=10),
    body=st.binary(max_size=60),
    opaque=I32,
    flag=I32,
    remark=st.none() | st.text(min_size=1, max_size=30),
    language=st.sampled_from(list(Language)).map(int),
    version=st.integers(-(2**15), 2**15 - 1),
    serialization=st.just(int(Serialization.BINARY)),
)
MESSAGES = st.builds(
    StoredMessage,
    topic=st.text(max_size=60),
    body=st.binary(max_size=60),
    properties=st.one_of(PROPERTIES.map(format_properties), st.binary(max_size=60)),
    queue_id=I32,
    queue_offset=I64,
    commit_log_offset=I64,
    flag=I32,
    sys_flag=I32.map(lambda flag: flag & ~0x30),
    born_ms=I64,
    born_host=HOSTS,
    store_ms=I64,
    store_host=HOSTS,
    reconsume_times=I32,
    prepared_offset=I64,
    body_crc=st.integers(0, 2**31 - 1),
)


@given(st.lists(st.one_of(JSON_COMMANDS, BINARY_COMMANDS), max_size=3), st.integers(1, 90))
@settings(max_examples=50)
def test_commands_come_out_as_they_went_in_however_the_bytes_are_cut(commands, step):
    stream = b"".join(map(encode, commands))
    frames = RemotingFrames()
    found = []
    for at in range(0, len(stream), step):
        frames.feed(stream[at : at + step])
        found += frames.commands()
    assert found == commands


SCALARS = st.one_of(TEXT, I64, st.booleans(), st.none(), st.floats(-1e9, 1e9))


@given(st.dictionaries(TEXT, SCALARS, max_size=10))
def test_ext_values_of_any_kind_become_text_and_never_null(ext):
    header = msgspec.json.encode({"code": 11, "extFields": ext})
    frames = RemotingFrames()
    frames.feed(struct.pack(">II", 4 + len(header), len(header)) + header)
    [command] = frames.commands()
    assert set(command.ext) == {name for name, value in ext.items() if value is not None}
    assert all(type(value) is str for value in command.ext.values())
    for name, value in ext.items():
        if isinstance(value, bool):
            assert command.ext[name] == str(value).lower()
        elif isinstance(value, float):
            assert float(command.ext[name]) == value
        elif value is not None:
            assert command.ext[name] == str(value)


@given(
    st.builds(
        PullHeader,
        consumer_group=TEXT,
        topic=TEXT,
        queue_id=I32,
        queue_offset=I64,
        max_msg_nums=I32,
        subscription=st.none() | TEXT,
        max_msg_bytes=st.none() | I32,
    )
)
def test_headers_read_back_from_their_text_map(header):
    assert parse(PullHeader, Command(11, fields(header))) == header


SENDS = st.fixed_dictionaries(
    {"a": TEXT, "b": TEXT, "e": I32 | I32.map(str)},
    optional={
        "d": I32.map(str),
        "f": I32,
        "g": I64 | I64.map(str),
        "i": TEXT,
        "k": st.booleans() | st.sampled_from(["true", "false"]),
        "l": I32.map(str),
        "Signature": TEXT,
        "z": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    },
)


@given(SENDS, I32, st.binary(max_size=30))
def test_the_short_cut_for_sends_reads_what_the_long_road_reads(ext, opaque, body):
    header = msgspec.json.encode({"code": 310, "opaque": opaque, "flag": 0, "extFields": ext})
    frame = struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body
    fast, slow = parse_send(frame), send_of(decode(frame))
    assert fast is not None
    assert msgspec.structs.astuple(fast) == msgspec.structs.astuple(slow)


@given(PROPERTIES)
def test_properties_read_back_as_map_and_one_by_one(properties):
    text = format_properties(properties)
    assert parse_properties(text) == properties
    for name, value in properties.items():
        assert value_of(text, name).decode() == value


@given(st.binary(max_size=40).map(lambda raw: raw.translate(bytes(n % 5 for n in range(256)))))
def test_single_values_agree_with_the_map_on_any_bytes(text):
    found = parse_properties(text)
    for name in ("\x00", "\x03", "\x04", "\x03\x03", "\x00\x03"):
        assert value_of(text, name).decode() == found.get(name, "")


@given(PROPERTIES, NAMES, VALUES)
def test_properties_can_be_added_and_taken_away(properties, name, value):
    text = with_property(format_properties(properties), name, value)
    assert parse_properties(text) == {**properties, name: value}
    rest = {other: kept for other, kept in properties.items() if other != name}
    assert parse_properties(without_properties(text, [name])) == rest


@given(st.lists(MESSAGES, max_size=3))
@settings(max_examples=50)
def test_stored_messages_read_back_one_behind_the_other(messages):
    assert decode_all(b"".join(map(encode_stored, messages))) == messages


@given(MESSAGES, st.integers(0, 2**62), st.integers(0, 2**40), st.integers(0, 2**41))
@settings(max_examples=60)
def test_the_log_stamps_exactly_what_the_message_was_to_say(message, offset, block, store_ms):
    position = 8 * block
    message.born_ms %= 2**62
    record = record_of(message)
    message.body_crc = -1
    message.queue_offset, message.commit_log_offset = offset, position
    message.store_ms = store_ms
    found = decode_entry(encode_entry(record, [(1, offset)], position, store_ms), 0, position)
    assert found is not None
    stored = found[0]
    assert stored.origin == encode_stored(message)
    assert (stored.body, stored.properties) == (message.body, message.properties)
    facts = message.property_map() if message.properties.isascii() else {}
    if facts:
        assert stored.tag.decode() == facts.get("TAGS", "")


@given(MESSAGES, st.text(max_size=60), I32, I64, I64)
@settings(max_examples=50)
def test_patched_bytes_are_those_of_the_patched_message(message, topic, queue_id, offset, position):
    origin = encode_stored(message)
    changed = msgspec.structs.replace(
        message, topic=topic, queue_id=queue_id, queue_offset=offset, commit_log_offset=position
    )
    patched = placed(retopic(origin, topic), queue_id, offset, position)
    assert patched == encode_stored(changed)
    assert decode_stored(origin)[0] == message


@given(
    st.lists(st.builds(BatchItem, st.binary(max_size=40), st.binary(max_size=40), I32), max_size=8)
)
def test_batches_read_back(items):
    assert split_batch(join_batch(items)) == items


@given(HOSTS, I64)
def test_offset_ids_read_back(host, position):
    assert parse_offset_message_id(offset_message_id(host, position)) == (host, position)


JSON = st.recursive(
    st.none() | st.booleans() | I64 | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=50)
def test_standard_json_is_left_as_it_is(value):
    text = msgspec.json.encode(value)
    assert standard_json(text) == text


@given(st.dictionaries(st.integers(0, 99), st.text(max_size=8), max_size=5))
def test_bare_integer_keys_become_strings(table):
    odd = b"{%b}" % b",".join(b"%d:%b" % (k, msgspec.json.encode(v)) for k, v in table.items())
    assert msgspec.json.decode(standard_json(odd)) == {str(k): v for k, v in table.items()}
