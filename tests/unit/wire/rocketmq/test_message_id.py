import pytest

from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.message_id import (
    UniqueKeys,
    decode_host,
    encode_host,
    month_of,
    offset_message_id,
    parse_offset_message_id,
)

NOV_15_2026 = 1794700800000
NOV_1_2026 = 1793491200000


def test_an_offset_id_is_address_port_and_position_in_hex():
    host = encode_host("10.218.145.166", 10700)
    assert host == b"\x0a\xda\x91\xa6\x00\x00\x29\xcc"
    assert offset_message_id(host, 433858845551) == "0ADA91A6000029CC0000006504009B6F"
    assert parse_offset_message_id("0ADA91A6000029CC0000006504009B6F") == (host, 433858845551)
    assert decode_host(host) == ("10.218.145.166", 10700)


def test_a_version_6_id_has_56_digits():
    host = encode_host("2001:db8::1", 10911)
    text = offset_message_id(host, 2**53 - 1)
    assert text == "20010DB8000000000000000000000001" + "00002A9F" + "001FFFFFFFFFFFFF"
    assert parse_offset_message_id(text) == (host, 2**53 - 1)
    assert decode_host(host) == ("2001:db8::1", 10911)


@pytest.mark.parametrize("ip", ["::1", "::ffff:127.0.0.1", "127.0.0.1"])
def test_loopback_is_version_4_because_ali_ons_reads_nothing_else(ip):
    assert encode_host(ip, 1) == b"\x7f\x00\x00\x01\x00\x00\x00\x01"


def test_a_zone_of_an_address_is_dropped():
    assert len(encode_host("fe80::1%eth0", 1)) == 20


@pytest.mark.parametrize("text", ["", "00", "0" * 31, "0" * 33, "g" * 32, "0 " * 16, "é" * 32])
def test_other_texts_are_no_offset_ids(text):
    with pytest.raises(Malformed, match="is not 32 or 56 hex digits"):
        parse_offset_message_id(text)


@pytest.mark.parametrize(("ip", "port"), [("localhost", 1), ("1.2.3", 1), ("1.2.3.4", 65536)])
def test_other_hosts_are_refused(ip, port):
    with pytest.raises(Malformed):
        encode_host(ip, port)


def test_hosts_of_other_lengths_are_refused():
    with pytest.raises(Malformed, match="8 or 20 bytes, not 9"):
        decode_host(bytes(9))


def test_a_unique_key_says_address_process_salt_time_in_month_and_count():
    clock = ManualClock(wall_ms=NOV_15_2026)
    keys = UniqueKeys("192.168.0.1", 0x12345, clock, salt=0x14DAD5DC)
    passed = NOV_15_2026 - NOV_1_2026
    assert keys.make() == f"C0A80001234514DAD5DC{passed:08X}0001"
    assert keys.make()[-4:] == "0002"
    assert len(UniqueKeys("2001:db8::1", 1, clock).make()) == 56


def test_unique_keys_start_anew_with_the_month_and_wrap_in_its_last_week():
    clock = ManualClock(wall_ms=NOV_1_2026 - 1)
    keys = UniqueKeys("192.168.0.1", 1, clock)
    assert keys.make()[20:28] == f"{31 * 86400000 - 1:08X}"
    clock.advance(1)
    assert keys.make()[20:28] == "00000000"


def test_unique_keys_differ_for_65536_calls_in_one_millisecond():
    keys = UniqueKeys("192.168.0.1", 1, ManualClock(wall_ms=NOV_15_2026))
    assert len({keys.make() for _ in range(65536)}) == 65536


def test_a_month_ends_where_the_next_begins_over_the_new_year_too():
    start, end = month_of(NOV_1_2026)
    assert start == NOV_1_2026
    assert month_of(end)[0] == end
    december_end = month_of(end)[1]
    assert month_of(december_end)[0] == december_end
