import pytest

from penstock.testing.catalog import MemoryCatalog


def test_applied_rows_are_loaded_and_deleted_ones_are_gone():
    catalog = MemoryCatalog()
    catalog.apply([("topic", "a", b"1"), ("topic", "b", b"2")])
    catalog.apply([("topic", "a", None), ("topic", "c", b"3")])
    assert catalog.load() == {("topic", "b"): b"2", ("topic", "c"): b"3"}


def test_the_heir_of_a_crash_has_what_was_applied_and_the_dead_one_refuses():
    catalog = MemoryCatalog()
    catalog.apply([("topic", "a", b"1")])
    heir = catalog.crash()
    assert heir.load() == {("topic", "a"): b"1"}
    with pytest.raises(OSError, match="died"):
        catalog.apply([])


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_failed_transaction_changes_nothing_unless_only_its_answer_was_lost(is_answer_lost):
    catalog = MemoryCatalog()
    catalog.failures, catalog.is_answer_lost = 1, is_answer_lost
    with pytest.raises(OSError, match="planned"):
        catalog.apply([("topic", "a", b"1")])
    assert bool(catalog.load()) is is_answer_lost
    catalog.apply([("topic", "b", b"1")])
    assert ("topic", "b") in catalog.load()
