"""Notices of alarms: RabbitMQ's words, once per episode."""

from penstock.adapters.amqp.blocked import BlockedNotices
from penstock.flow.reason import Reason
from penstock.wire.amqp.methods.connection import Blocked, Unblocked


def test_an_alarm_is_told_once_and_its_end_once():
    notices = BlockedNotices()
    assert notices.changed([]) is None
    assert notices.changed([Reason.MEMORY]) == Blocked("low on memory")
    assert notices.is_blocked
    assert notices.changed([Reason.MEMORY, Reason.DISK]) is None
    assert notices.changed([Reason.DISK]) is None
    assert notices.changed([]) == Unblocked()
    assert not notices.is_blocked


def test_two_alarms_at_once_are_joined():
    notices = BlockedNotices()
    assert notices.changed([Reason.DISK, Reason.MEMORY]) == Blocked("low on memory & low on disk")


def test_flow_and_holds_are_nobodys_business():
    notices = BlockedNotices()
    assert notices.changed([Reason.FLOW, Reason.HELD, Reason.RATE, Reason.QUOTA]) is None
