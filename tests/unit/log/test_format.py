import pytest

from penstock.log.format import FORMAT_NAME, FORMAT_VERSION, check_format
from penstock.model.errors import FormatTooNew
from penstock.testing.storage import MemoryStorage


@pytest.fixture
def storage():
    return MemoryStorage()


def content(storage):
    return storage.open(FORMAT_NAME, create=False).read(0, 100)


def put(storage, data):
    storage.open(FORMAT_NAME, create=True).write(data)


def test_a_new_directory_gets_the_number(storage):
    assert check_format(storage) == ""
    assert content(storage) == f"penstock format {FORMAT_VERSION}\n".encode()
    assert check_format(storage) == ""


def test_a_newer_format_is_refused_and_left_alone(storage):
    put(storage, b"penstock format 99\n")
    with pytest.raises(FormatTooNew, match="newer Penstock"):
        check_format(storage)
    assert content(storage) == b"penstock format 99\n"


def test_an_unreadable_file_is_written_again_and_said_so(storage):
    put(storage, b"\x00\x00")
    assert "written again" in check_format(storage)
    assert check_format(storage) == ""
