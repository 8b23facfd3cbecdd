"""The data directory's format number, in a file a person can read.

``format`` says ``penstock format 1``. A larger number means that a newer Penstock wrote the
directory: it is left alone. A missing or unreadable file is written again, because every frame of
the log carries the version as well and ``scan.py`` refuses newer ones.
"""

import re
from typing import Final

from penstock.log.storage import Storage
from penstock.model.errors import FormatTooNew, LogCorrupt

FORMAT_NAME: Final = "format"
FORMAT_VERSION: Final = 1
_READ_BYTES: Final = 64
_TEXT: Final = re.compile(rb"penstock format (\d{1,9})\n")


def check_format(storage: Storage) -> str:
    """Make sure that we know the format; a note when the file had to be written again."""
    content = _read(storage)
    match = _TEXT.fullmatch(content) if content is not None else None
    if match is not None:
        version = int(match[1])
        if version > FORMAT_VERSION:
            raise FormatTooNew(
                f"this data directory has format {version}, this Penstock knows {FORMAT_VERSION};"
                " use the newer Penstock that wrote it"
            )
        return ""
    _write(storage)
    if content is None:
        return ""
    return "the file 'format' was unreadable and was written again"


def _read(storage: Storage) -> bytes | None:
    try:
        file = storage.open(FORMAT_NAME, create=False)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, _READ_BYTES)
    finally:
        file.close()


def _write(storage: Storage) -> None:
    fresh = f"{FORMAT_NAME}.new"
    text = f"penstock format {FORMAT_VERSION}\n".encode()
    file = storage.open(fresh, create=True)
    try:
        file.truncate(0)
        if file.write(text) != len(text):
            raise LogCorrupt("the disk is full: make room in the data directory and start again")
        file.sync()
    finally:
        file.close()
    storage.rename(fresh, FORMAT_NAME)
    storage.sync_dir("")
