from penstock.cli.story import slowness
from penstock.cli.story.slowness import Amount, row_seconds, set_row_seconds


def test_a_row_costs_what_the_file_says_and_nothing_without_one(tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(slowness.time, "sleep", slept.append)
    monkeypatch.setattr(slowness, "LOOK_S", -1)
    amount = Amount(str(tmp_path / "slow"))
    assert amount(250, 4) == 1000
    set_row_seconds(tmp_path / "slow", 0.5)
    amount(1, 1)
    set_row_seconds(tmp_path / "slow", 0)
    amount(1, 1)
    assert slept == [0.5]


def test_the_file_is_looked_at_now_and_then_only(tmp_path):
    path = tmp_path / "slow"
    set_row_seconds(path, 0.25)
    assert row_seconds(str(path)) == 0.25
    set_row_seconds(path, 0.5)
    assert row_seconds(str(path)) == 0.25


def test_a_file_with_something_else_in_it_costs_nothing(tmp_path):
    (tmp_path / "slow").write_text("soon")
    assert row_seconds(str(tmp_path / "slow")) == 0
