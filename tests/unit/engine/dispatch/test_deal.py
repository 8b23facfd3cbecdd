"""Dealing out: what consumers have a limit for together is counted once."""

from penstock.engine.consumer import Consumer
from penstock.engine.dispatch.deal import Rooms
from penstock.engine.subscription import Subscription
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import ChannelWindow, Window
from penstock.testing.outlet import RecordingOutlet
from penstock.testing.workbench import Workbench


class Scene:
    """A queue with messages and a reader without consumers."""

    def __init__(self, messages: int) -> None:
        self.bench = Workbench()
        self.topic = self.bench.topic()
        self.reader: Subscription = self.bench.reader(self.topic)
        self.outlet = RecordingOutlet()
        bodies = [b"%d" % number for number in range(messages)]
        self.bench.publish(self.bench.channel(), self.topic, *bodies)

    def join(self, window: Window, unsent: UnsentLimit | None = None) -> Consumer:
        consumer = self.reader.attach(
            self.outlet, window, name=f"c{len(self.reader.consumers)}", unsent=unsent
        )
        assert isinstance(consumer, Consumer)
        return consumer


def test_a_window_that_is_shared_counts_once() -> None:
    scene = Scene(50)
    shared = ChannelWindow(5)
    consumers = [scene.join(Window(0, shared)) for _ in range(3)]
    assert Rooms(consumers).total()[0] == 5
    scene.bench.settle()
    assert sum(each.inflight.messages for each in consumers) == 5
    # And everybody had their turn.
    assert all(each.inflight.messages for each in consumers)


def test_a_total_takes_nothing_and_separate_sockets_add_up() -> None:
    scene = Scene(0)
    rooms = Rooms([scene.join(Window(7), UnsentLimit(5, 0)), scene.join(Window(3))])
    assert rooms.total()[0] == rooms.total()[0] == 8
    assert [rooms.left(0)[0], rooms.left(1)[0]] == [5, 3]
    assert rooms.has_for_each(3, 0)
    assert not rooms.has_for_each(4, 0)


def test_windows_inside_the_shared_one_count_too() -> None:
    scene = Scene(50)
    shared = ChannelWindow(10)
    small, large = scene.join(Window(2, shared)), scene.join(Window(20, shared))
    scene.bench.settle()
    assert (small.inflight.messages, large.inflight.messages) == (2, 8)


def test_one_socket_is_one_backlog() -> None:
    scene = Scene(100)
    unsent = UnsentLimit(20, 0)
    ours = [scene.join(Window(), unsent) for _ in range(4)]
    scene.bench.settle()
    assert sum(each.inflight.messages for each in ours) == 20
    other = scene.join(Window(15))
    scene.bench.settle()
    assert other.inflight.messages == 15


def test_bytes_of_one_socket_are_counted_once() -> None:
    scene = Scene(100)
    unsent = UnsentLimit(0, 1000)
    ours = [scene.join(Window(), unsent) for _ in range(4)]
    assert Rooms(ours).total()[1] == 1000
    scene.bench.settle()
    assert unsent.bytes < 1000 + 4 * 200
