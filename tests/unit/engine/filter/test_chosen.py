"""Filters chosen by the message's origin."""

from penstock.engine.filter.chosen import ChosenFilter
from penstock.engine.filter.tag import tag_filter
from penstock.model.record import neutral_record

BY_ORIGIN = {b"orders": tag_filter("A"), b"bills": tag_filter("B")}


def chosen():
    return ChosenFilter(lambda record: BY_ORIGIN.get(record.key))


def test_each_message_is_judged_by_the_filter_of_its_origin():
    wants = chosen().matches_record
    assert wants(neutral_record(b"", key=b"orders", tag=b"A"))
    assert not wants(neutral_record(b"", key=b"orders", tag=b"B"))
    assert wants(neutral_record(b"", key=b"bills", tag=b"B"))


def test_a_message_without_a_filter_passes():
    assert chosen().matches_record(neutral_record(b"", key=b"elsewhere", tag=b"Z"))


def test_nothing_is_refused_before_it_is_read():
    assert chosen().matches_entry(12345)
