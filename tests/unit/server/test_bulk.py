"""The bulk lane's part of a start: the port, and what is said without Arrow."""

import pytest

from penstock.model.errors import StartRefused
from penstock.server import bulk
from penstock.server.banner import Figures, banner_lines
from penstock.server.listener import open_sockets
from penstock.settings.broker import ListenerSettings
from penstock.settings.load import Settings


def lane(port, monkeypatch, *, is_arrow_there=True):
    monkeypatch.setattr(bulk, "is_arrow_there", lambda: is_arrow_there)
    made = bulk.BulkLane(Settings(listeners=ListenerSettings(flight=port)))
    try:
        made.reserve()
    finally:
        made.close()
    return made


def test_a_free_port_is_known_before_the_process_runs(monkeypatch):
    assert int(lane("0", monkeypatch).endpoint.removeprefix("127.0.0.1:")) > 0


def test_off_means_no_process(monkeypatch):
    made = lane("off", monkeypatch)
    assert (made.endpoint, made.is_missing) == ("", False)


def test_a_taken_port_is_told_at_the_start(monkeypatch):
    with open_sockets("other", ["127.0.0.1"], 0)[0] as taken:
        taken.listen()
        with pytest.raises(StartRefused, match="flight"):
            lane(str(taken.getsockname()[1]), monkeypatch)


def test_without_arrow_one_line_says_how_to_get_it(monkeypatch, caplog, tmp_path):
    made = lane("0", monkeypatch, is_arrow_there=False)
    assert (made.endpoint, made.is_missing) == ("", True)
    assert "pip install 'penstock[spark]'" in caplog.text
    lines = banner_lines(
        Settings(), tmp_path, {}, Figures(1, 1, 1, 1), start_seconds=0.1, is_arrow_missing=True
    )
    assert "flight" in lines[1]
    assert "pip install" in lines[1]
