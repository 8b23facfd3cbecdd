"""Places: how many peers, and why one was turned away."""

import resource

from penstock.server.places import (
    RESERVED_FILES,
    TOO_MANY,
    TOO_MANY_OF_ADDRESS,
    Places,
    files_max,
    protocol_places,
)
from penstock.settings.broker import ListenerSettings


def test_a_full_house_turns_peers_away_and_counts_them():
    places = Places(2, per_address_max=2)
    assert [places.take(address) for address in ("a", "b", "c")] == [True, True, False]
    assert places.refused[TOO_MANY] == 1
    places.leave("a")
    assert places.take("c")


def test_one_address_cannot_take_all_places():
    places = Places(10, per_address_max=1)
    assert places.take("a")
    assert not places.take("a")
    assert places.take("b")
    assert places.refused[TOO_MANY_OF_ADDRESS] == 1


def test_an_address_that_left_is_forgotten():
    places = Places(10, per_address_max=1)
    for number in range(100):
        assert places.take(str(number % 50))
        places.leave(str(number % 50))
    assert not places._per_address


def test_the_log_keeps_its_file_handles_whatever_the_settings_allow():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = ListenerSettings(connections_max=10_000_000)
    assert protocol_places(settings).places_max <= files_max() - RESERVED_FILES
    assert files_max() >= soft
