"""Hooks around each call of the listener."""

from kit.client.parts import received_message
from penstock.client.consumer.executor import ConsumeHooks, Finished, ResultKind
from penstock.model.assignment import QueueRef

QUEUE = QueueRef("t", "b", 0)


class Recorder:
    """A hook that remembers, and fails when told to."""

    def __init__(self, name, fails=False):
        self.name, self.fails, self.seen = name, fails, []

    def before(self, group, queue, messages):
        if self.fails:
            raise RuntimeError("hook")
        self.seen.append(("before", group, queue, len(messages)))
        return self.name

    def after(self, group, queue, finished, context):
        if self.fails:
            raise RuntimeError("hook")
        self.seen.append(("after", finished.kind, context))


def test_each_hook_gets_its_own_context_back_with_the_result():
    one, two = Recorder("one"), Recorder("two")
    hooks = ConsumeHooks("g", [one])
    hooks.add(two)
    contexts = hooks.before(QUEUE, [received_message(QUEUE, 1)])
    hooks.after(QUEUE, Finished([], None, None, ResultKind.LATER, 1.0), contexts)
    for each in (one, two):
        assert each.seen == [("before", "g", QUEUE, 1), ("after", ResultKind.LATER, each.name)]


def test_a_hook_that_raises_keeps_nobody_from_being_called(caplog):
    bad, good = Recorder("bad", fails=True), Recorder("good")
    hooks = ConsumeHooks("g", [bad, good])
    contexts = hooks.before(QUEUE, [])
    hooks.after(QUEUE, Finished([], None, None, ResultKind.SUCCESS, 1.0), contexts)
    assert [each[0] for each in good.seen] == ["before", "after"]
    assert len(caplog.records) == 2
