"""Counters of adapters: shown as they are, and bounded."""

from penstock.engine.tallies import LABELS_MAX, NAMES_MAX, Tallies


def test_what_is_shown_is_read_as_it_is_now():
    tallies, counts = Tallies(), {"found": 1}
    tallies.show("pulls", "Pulls", "status", counts)
    counts["found"] += 1
    (tally,) = tallies
    assert (tally.name, tally.label, tally.counts) == ("pulls", "status", {"found": 2})
    assert tally.counts is not counts


def test_a_name_is_shown_once():
    tallies = Tallies()
    tallies.show("pulls", "Pulls", "status", {"old": 1})
    tallies.show("pulls", "Pulls", "status", {"new": 1})
    assert [tally.counts for tally in tallies] == [{"new": 1}]


def test_names_and_labels_are_bounded():
    tallies = Tallies()
    for number in range(NAMES_MAX + 10):
        tallies.show(f"n{number}", "", "label", dict.fromkeys(map(str, range(LABELS_MAX + 10)), 1))
    found = list(tallies)
    assert len(found) == NAMES_MAX
    assert all(len(tally.counts) == LABELS_MAX for tally in found)
