import pytest

from kit.checkers import Op, Outcome, Poll, Seen, SetRead, fifo, log_order, set_full, total_queue


def sent(value, outcome=Outcome.OK):
    return Op("p", "enqueue", value, outcome)


def seen(value, *, redelivered=False):
    return Op("c", "dequeue", value, Outcome.OK, is_redelivered=redelivered)


class TestTotalQueue:
    def test_all_confirmed_and_seen_once_is_valid(self):
        report = total_queue([sent("a:1"), sent("a:2"), seen("a:2"), seen("a:1")])
        assert report.is_valid
        assert (report.attempted, report.confirmed, report.seen) == (2, 2, 2)
        assert not report.duplicated

    def test_a_confirmed_value_never_seen_is_lost(self):
        report = total_queue([sent("a:1"), sent("a:2"), seen("a:1")])
        assert report.lost == ["a:2"]
        assert "1 lost (a:2)" in report.sentence
        assert not report.is_valid

    def test_a_value_nobody_sent_is_invented(self):
        report = total_queue([sent("a:1"), seen("a:1"), seen("x:9")])
        assert report.unexpected == ["x:9"]
        assert not report.is_valid

    def test_a_refused_value_that_turns_up_is_invented(self):
        report = total_queue([sent("a:1", Outcome.FAIL), seen("a:1")])
        assert report.unexpected == ["a:1"]

    def test_a_value_of_unknown_outcome_may_turn_up_or_not(self):
        history = [sent("a:1", Outcome.INVOKE), sent("a:1", Outcome.INFO)]
        assert total_queue(history).is_valid
        report = total_queue([*history, seen("a:1")])
        assert report.is_valid
        assert report.recovered == 1

    def test_a_second_delivery_counts_as_duplicate_only_without_the_mark(self):
        marked = [sent("a:1"), seen("a:1"), seen("a:1", redelivered=True)]
        assert total_queue(marked).duplicated == []
        assert total_queue([sent("a:1"), seen("a:1"), seen("a:1")]).duplicated == ["a:1"]


class TestFifo:
    def test_publishers_may_interleave(self):
        assert fifo([Seen("q", "a:1"), Seen("q", "b:1"), Seen("q", "a:2")]).is_valid

    def test_two_of_one_publisher_out_of_order_is_a_breach(self):
        report = fifo([Seen("q", "a:2"), Seen("q", "a:1")])
        assert report.breaches == ["queue q gave a:1 after a:2"]

    def test_queues_are_independent(self):
        assert fifo([Seen("q", "a:2"), Seen("r", "a:1")]).is_valid

    def test_redelivered_values_are_out_of_the_order(self):
        assert fifo([Seen("q", "a:2"), Seen("q", "a:1", is_redelivered=True)]).is_valid


class TestLogOrder:
    def test_readers_that_agree_are_valid(self):
        polls = [
            Poll("r", "q", [(0, "a:1"), (1, "a:2")]),
            Poll("s", "q", [(0, "a:1")]),
            Poll("s", "q", [(1, "a:2"), (5, "a:3")]),
        ]
        report = log_order(polls)
        assert report.is_valid, report.sentence
        assert report.checked == 5

    def test_two_values_on_one_offset_is_a_breach(self):
        report = log_order([Poll("r", "q", [(0, "a:1")]), Poll("s", "q", [(0, "b:1")])])
        assert report.breaches == ["q@0 is both a:1 and b:1"]

    def test_a_reader_that_goes_back_without_a_seek_is_a_breach(self):
        polls = [Poll("r", "q", [(3, "a:3")]), Poll("r", "q", [(2, "a:2")])]
        assert "went back from 3 to 2" in log_order(polls).sentence
        polls[1].is_after_seek = True
        assert log_order(polls).is_valid

    def test_a_skip_inside_a_poll_is_a_breach(self):
        polls = [
            Poll("r", "q", [(0, "a:0"), (1, "a:1"), (2, "a:2")]),
            Poll("s", "q", [(0, "a:0"), (2, "a:2")]),
        ]
        assert log_order(polls).breaches == ["reader s of q skipped from 0 to 2 inside a poll"]

    def test_one_publishers_values_out_of_offset_order_is_a_breach(self):
        report = log_order([Poll("r", "q", [(0, "a:2"), (1, "a:1")])])
        assert report.breaches == ["queue q gave a:1 after a:2"]


class TestSetFull:
    def test_visible_in_every_later_read_is_valid(self):
        reads = [SetRead(5, frozenset()), SetRead(20, frozenset({"a:1"}))]
        assert set_full(["a:1"], {"a:1": 10}, reads).is_valid

    def test_missing_from_the_last_read_is_lost(self):
        reads = [SetRead(20, frozenset({"a:1"})), SetRead(30, frozenset())]
        report = set_full(["a:1"], {"a:1": 10}, reads)
        assert report.lost == ["a:1"]
        assert report.stale == []

    def test_missing_once_and_back_later_is_stale(self):
        reads = [SetRead(20, frozenset()), SetRead(30, frozenset({"a:1"}))]
        report = set_full(["a:1"], {"a:1": 10}, reads)
        assert (report.lost, report.stale) == ([], ["a:1"])
        assert set_full(["a:1"], {"a:1": 10}, reads, stable_ns=15).is_valid

    def test_an_element_nobody_added_is_invented(self):
        report = set_full([], {}, [SetRead(1, frozenset({"x:1"}))])
        assert report.unexpected == ["x:1"]


@pytest.mark.parametrize("size", [100_000])
def test_a_long_history_is_checked_in_one_walk(size):
    history = [sent(f"p{n % 8}:{n}") for n in range(size)]
    history += [seen(f"p{n % 8}:{n}") for n in range(size)]
    assert total_queue(history).is_valid
    assert fifo(Seen("q", op.value) for op in history[size:]).checked == size
