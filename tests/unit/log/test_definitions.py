from penstock.log.definitions import ID_BLOCK, Definitions
from penstock.model.ids import TRANSIENT_ID_MIN


def after_restart(definitions, rows):
    """What a new process finds when the operations so far were applied."""
    for kind, key, body in definitions.take_ops():
        if body is None:
            rows.pop((kind, key), None)
        else:
            rows[kind, key] = body
    return Definitions(rows)


def test_rows_are_kept_by_kind_and_key():
    definitions = Definitions({})
    definitions.put("topic", "a", b"1")
    definitions.put("user", "a", b"2")
    again = after_restart(definitions, {})
    assert again.get("topic", "a") == b"1"
    assert again.all("user") == {"a": b"2"}
    assert again.all("nothing") == {}


def test_a_deleted_row_is_gone_after_a_restart():
    rows = {}
    definitions = Definitions({})
    definitions.put("topic", "a", b"1")
    definitions = after_restart(definitions, rows)
    definitions.delete("topic", "a")
    assert definitions.get("topic", "a") is None
    assert after_restart(definitions, rows).all("topic") == {}


def test_deleting_what_is_not_there_wants_no_transaction():
    definitions = Definitions({})
    definitions.delete("topic", "a")
    assert not definitions.ops


def test_every_change_has_a_later_number():
    definitions = Definitions({})
    first = definitions.put("topic", "a", b"1")
    assert definitions.put("topic", "a", b"2") > first
    assert definitions.sequence == first + 1


def test_operations_of_a_failed_transaction_come_first_in_the_next():
    definitions = Definitions({})
    definitions.put("topic", "a", b"1")
    failed = definitions.take_ops()
    definitions.put("topic", "b", b"2")
    definitions.put_back(failed)
    assert [key for _, key, _ in definitions.take_ops()] == ["a", "b"]


def test_ids_are_never_handed_out_twice_even_if_the_last_were_not_noted():
    rows = {}
    definitions = Definitions({})
    seen = {definitions.new_id("queue") for _ in range(10)}
    again = after_restart(definitions, rows)
    # A crash: what this process does after its first reservation never reaches the catalog.
    used = {again.new_id("queue") for _ in range(ID_BLOCK // 4)}
    final = Definitions(rows)
    assert not seen & used
    assert final.new_id("queue") not in seen


def test_an_id_met_in_the_log_is_never_handed_out():
    definitions = Definitions({})
    definitions.lift_id("queue", 5000)
    assert definitions.new_id("queue") == 5001
    assert after_restart(definitions, {}).new_id("queue") > 5001


def test_transient_ids_are_apart_and_leave_no_trace():
    definitions = Definitions({})
    assert definitions.new_transient_id("queue") == TRANSIENT_ID_MIN
    assert definitions.new_transient_id("queue") == TRANSIENT_ID_MIN + 1
    assert not definitions.ops
