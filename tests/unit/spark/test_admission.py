"""F17: rows of the next batch follow the time of the last one."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.admission import FIRST_ROWS, STEP_MAX, STEP_MIN, Admission


def run(admission, batches, *, row_s, fixed_s=0.0, waiting=10**12, cold_s=0.0):
    """Batches of a query whose rows take ``row_s`` each; the times they took."""
    took = []
    for number in range(batches):
        rows = min(admission.rows, waiting)
        took.append(fixed_s + rows * row_s + (cold_s if not number else 0))
        admission.observe(rows, took[-1])
    return took


def test_a_slow_transformation_comes_to_its_target_within_three_batches():
    took = run(Admission(2.0), 12, row_s=0.0005, fixed_s=0.25, cold_s=4)
    assert all(1.7 <= each <= 2.3 for each in took[2:])


def test_a_very_slow_one_is_halved_until_it_fits():
    took = run(Admission(2.0), 20, row_s=0.01, fixed_s=0.25)
    assert all(each <= 2.7 for each in took[8:])
    assert took[-1] > 1.7


def test_a_fast_one_is_doubled_until_it_fits():
    admission = Admission(5.0)
    took = run(admission, 30, row_s=1 / 500_000, fixed_s=0.25)
    assert 4.5 < took[-1] < 5.5
    assert 450_000 < admission.rate < 550_000


def test_the_first_batch_pays_for_a_cold_start_and_raises_nothing():
    admission = Admission(5.0)
    admission.observe(FIRST_ROWS, 0.1)
    assert (admission.rows, admission.rate) == (FIRST_ROWS, 0.0)
    admission = Admission(1.0)
    admission.observe(FIRST_ROWS, 60)
    assert admission.rows == FIRST_ROWS // 2


def test_the_users_limit_is_never_passed():
    admission = Admission(5.0, 7_000)
    run(admission, 10, row_s=1e-6)
    assert admission.rows == 7_000


def test_few_rows_say_nothing_about_many():
    admission = Admission(5.0)
    run(admission, 30, row_s=1e-6, fixed_s=0.2)
    before = admission.rows
    run(admission, 30, row_s=1e-6, fixed_s=0.2, waiting=10)
    assert admission.rows == before


def test_one_hiccup_is_forgotten():
    admission = Admission(2.0)
    run(admission, 10, row_s=0.001)
    admission.observe(admission.rows, 8)
    took = run(admission, 6, row_s=0.001)
    assert 1.5 < took[-1] < 2.5


def test_a_trigger_interval_above_the_target_does_not_starve_the_query():
    """Every batch seems to take ten seconds, because Spark asks only then."""
    admission = Admission(5.0)
    run(admission, 20, row_s=1e-5, fixed_s=0.2)
    before = admission.rows
    for _ in range(100):
        admission.observe(admission.rows, max(10.0, admission.rows * 1e-5))
    assert admission.rows > before / 4
    assert admission.pace_s >= 10


def test_a_fixed_cost_just_above_the_target_does_not_starve_it_either():
    admission = Admission(5.0)
    run(admission, 20, row_s=1e-5, fixed_s=0.2)
    before = admission.rows
    took = run(admission, 200, row_s=1e-6, fixed_s=5.5)
    assert admission.rows > before / 4
    assert max(took) < 9


def test_a_fixed_cost_below_the_target_leaves_the_target_in_force():
    took = run(Admission(5.0), 60, row_s=1e-4, fixed_s=3.0)
    assert 4.5 < took[-1] < 5.5


def test_a_pace_that_was_a_hiccup_is_doubted_after_a_while():
    admission = Admission(2.0)
    run(admission, 10, row_s=0.001)
    rows = admission.rows
    admission.observe(rows, 8)
    admission.observe(admission.rows, 8)
    assert not admission.pace_s
    admission.observe(admission.rows, 8)
    assert admission.pace_s
    took = run(admission, 40, row_s=0.001)
    assert 1.5 < took[-1] < 2.5


@given(
    target=st.floats(0.05, 60),
    limit=st.integers(1, 10**7),
    batches=st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 1000)), max_size=40),
)
def test_whatever_happens_limits_hold_and_steps_are_small(target, limit, batches):
    admission = Admission(target, limit)
    for rows, took in batches:
        done = min(rows, admission.rows)
        before = admission.rows
        admission.observe(done, took)
        assert 1 <= admission.rows <= limit
        assert admission.rows <= max(STEP_MAX * max(done, 10), before)
        assert admission.rows >= min(int(STEP_MIN * max(done, 1)), before, limit)


def test_a_batch_too_short_for_the_clock_is_no_division_by_zero():
    admission = Admission(1.0, 2)
    admission.observe(1, 1.0)
    admission.observe(2, 5e-324)
    assert admission.rows == 2
    assert admission.rate > 0
