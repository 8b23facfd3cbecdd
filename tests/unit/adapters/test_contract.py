"""The contract: an adapter has every verb that the pump calls, and peers read well."""

import pytest

from kit.line_protocol import LineAdapter, LineFactory
from penstock.adapters.contract import Adapter, AdapterFactory, Peer


def verbs(protocol):
    return [name for name in vars(protocol) if not name.startswith("_")]


def test_the_smallest_adapter_offers_everything_the_contract_asks_for():
    source = LineAdapter.__init__.__code__.co_names
    missing = [
        verb for verb in verbs(Adapter) if not hasattr(LineAdapter, verb) and verb not in source
    ]
    assert missing == []
    assert [verb for verb in verbs(AdapterFactory) if not hasattr(LineFactory, verb)] == []


@pytest.mark.parametrize(("host", "text"), [("127.0.0.1", "127.0.0.1:4000"), ("::1", "[::1]:4000")])
def test_a_peer_is_shown_as_it_is_dialled(host, text):
    assert str(Peer(host, 4000, host, 5672)) == text
