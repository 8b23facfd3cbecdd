"""The ready file: whole or not there, and found by the verbs."""

import os

import pytest

from penstock.model.errors import NotFound, StartRefused
from penstock.server.ready_file import NAME, find_ready, remove_ready, write_ready


def test_what_is_written_is_found(tmp_path):
    write_ready(tmp_path / NAME, {"http": "127.0.0.1:15672"})
    assert find_ready(tmp_path) == (os.getpid(), {"http": "127.0.0.1:15672"})
    assert os.listdir(tmp_path) == [NAME]


def test_removed_it_is_not_found_and_the_sentence_says_what_to_do(tmp_path):
    write_ready(tmp_path / NAME, {})
    remove_ready(tmp_path / NAME)
    remove_ready(tmp_path / NAME)
    with pytest.raises(NotFound, match="penstock up --data"):
        find_ready(tmp_path)


def test_a_place_that_cannot_be_written_refuses_the_start(tmp_path):
    with pytest.raises(StartRefused, match="--ready-file"):
        write_ready(tmp_path / "missing" / "ready", {})


@pytest.mark.parametrize("text", ["", "[]", '{"pid": "x"}'])
def test_a_damaged_file_is_a_sentence_not_a_traceback(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(NotFound, match="--endpoint"):
        find_ready(tmp_path)
