"""What each part refuses by itself."""

import pytest

from penstock.model.errors import SettingsError
from penstock.settings.broker import PROTOCOLS, BrokerSettings, ListenerSettings, StorageSettings
from penstock.settings.flow import FlowSettings


@pytest.mark.parametrize("mode", ["fsync", "os", "interval:50"])
def test_the_three_durabilities_are_taken(mode):
    assert StorageSettings(durability=mode).durability == mode


@pytest.mark.parametrize("mode", ["", "sync", "interval", "interval:", "interval:0", "interval:x"])
def test_any_other_durability_is_refused(mode):
    with pytest.raises(SettingsError, match="fsync, interval:MS"):
        StorageSettings(durability=mode)


@pytest.mark.parametrize(
    "wrong", [{"segment_bytes_max": 100}, {"write_buffers_max": 0}, {"write_buffer_bytes": 1}]
)
def test_a_log_without_room_for_a_frame_is_refused(wrong):
    with pytest.raises(SettingsError, match="at least"):
        StorageSettings(**wrong)


def test_unsynced_bytes_are_all_write_buffers_together():
    storage = StorageSettings(write_buffers_max=3, write_buffer_bytes=1 << 20)
    assert storage.unsynced_bytes_max == 3 << 20


@pytest.mark.parametrize("hop", ["reader_channel", "channel_queue", "queue_log"])
@pytest.mark.parametrize(("credit", "more"), [(100, 101), (100, 0), (0, 0)])
def test_a_hop_that_would_never_or_always_grant_is_refused(hop, credit, more):
    with pytest.raises(SettingsError, match=f"flow.{hop}_more"):
        FlowSettings(**{f"{hop}_credit": credit, f"{hop}_more": more})


def test_a_share_larger_than_its_pool_is_refused():
    with pytest.raises(SettingsError, match="inflight_bytes_max"):
        FlowSettings(connection_bytes_max=2, inflight_bytes_max=1)


@pytest.mark.parametrize("limit", ["0", "0.6", "1.0", "2GiB", "1.5GiB", "1048576"])
def test_alarm_limits_are_a_share_or_bytes(limit):
    assert FlowSettings(memory_limit=limit, disk_free_limit=limit).memory_limit == limit


@pytest.mark.parametrize("limit", ["", "1.5", "60%", "-1", "lots"])
@pytest.mark.parametrize("name", ["memory_limit", "disk_free_limit"])
def test_any_other_alarm_limit_is_refused(name, limit):
    with pytest.raises(SettingsError, match=f"flow.{name}"):
        FlowSettings(**{name: limit})


@pytest.mark.parametrize(
    "ratios", [{"memory_low_ratio": 0.0}, {"memory_low_ratio": 1.1}, {"disk_high_ratio": 0.9}]
)
def test_hysteresis_on_the_wrong_side_of_its_limit_is_refused(ratios):
    with pytest.raises(SettingsError, match="ratio"):
        FlowSettings(**ratios)


def test_localhost_is_both_loopbacks():
    assert ListenerSettings().addresses == ("127.0.0.1", "::1")


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_addresses_need_no_permission(address):
    assert ListenerSettings(bind=address).is_loopback


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.2", "broker.example"])
def test_an_address_others_can_reach_needs_insecure(address):
    with pytest.raises(SettingsError, match="--insecure"):
        ListenerSettings(bind=address)
    assert ListenerSettings(bind=address, insecure=True).addresses == (address,)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_port_is_a_number_any_free_one_or_off(protocol):
    assert ListenerSettings(**{protocol: "1234"}).port(protocol) == 1234
    assert ListenerSettings(**{protocol: "0"}).port(protocol) == 0
    assert ListenerSettings(**{protocol: "off"}).port(protocol) is None


@pytest.mark.parametrize("text", ["", "70000", "-1", "http", "on", "80 80"])
def test_any_other_port_is_refused_with_its_name(text):
    with pytest.raises(SettingsError, match=r"listeners\.amqp.*or off"):
        ListenerSettings(amqp=text)


@pytest.mark.parametrize("wrong", [{"data": ""}, {"name": ""}, {"log_level": "loud"}])
def test_a_broker_without_directory_name_or_known_log_level_is_refused(wrong):
    with pytest.raises(SettingsError, match=f"broker.{next(iter(wrong))}"):
        BrokerSettings(**wrong)


def test_a_turn_hands_out_more_than_it_takes_from_a_publisher():
    """Else a backlog grows although its consumer reads as fast as it can."""
    flow = FlowSettings()
    assert flow.unsent_messages_max >= 2 * flow.turn_channel_messages_max
