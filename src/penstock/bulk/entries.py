"""The index entries of a range, from files and from the broker's tail, in stretches.

Invariant: the entries of all stretches ascend and do not overlap, whatever a damaged file says.
What is missing between two of them is a hole, which the caller counts.

Not here: who knows the files (``broker.py``, ``offline.py``), the records (``gather.py``).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock.bulk.layout import ENTRY, Column, entries_in
from penstock.bulk.link import IndexFile, Located


class IndexFileGone(Exception):
    """A file was removed since it was named; whoever named it should be asked again."""


def stretches(directory: Path, located: Located, start: int, end: int) -> Iterator[Column]:
    """The entries that hold any offset of [start, end), at most a file of them at a time."""
    firsts = [file.first_offset for file in located.files]
    for number, file in enumerate(located.files):
        behind = firsts[number + 1] if number + 1 < len(firsts) else end
        if behind <= start or file.first_offset >= end:
            continue
        found = _within(_read(directory, file, start, end), start, end)
        if len(found):
            yield found
            start = max(start, _end_of(found))
    found = _within(entries_in(located.tail), start, end)
    if len(found):
        yield found


def _end_of(entries: Column) -> int:
    return int(entries["first_offset"][-1]) + int(entries["messages"][-1])


def _read(directory: Path, file: IndexFile, start: int, end: int) -> Column:
    """Entries of a file, from the one that holds ``start`` if that is easy to find."""
    try:
        fd = os.open(directory / file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise IndexFileGone(file.path) from None
    try:
        # Without batches and holes entry i is at offset first + i.
        guess = start - file.first_offset
        if 0 <= guess < file.entries:
            count = min(end - start, file.entries - guess)
            found = _pread(fd, guess, count)
            if len(found) == count and int(found["first_offset"][0]) == start:
                return found
        return _pread(fd, 0, file.entries)
    finally:
        os.close(fd)


def _pread(fd: int, first: int, count: int) -> Column:
    data = os.pread(fd, count * ENTRY.itemsize, first * ENTRY.itemsize)
    return entries_in(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize])


def _within(entries: Column, start: int, end: int) -> Column:
    """Those that hold any offset of [start, end), and ascend."""
    first = entries["first_offset"].astype(np.int64)
    behind = first + entries["messages"]
    is_in = (behind > start) & (first < end) & (entries["messages"] > 0) & (first >= 0)
    if not is_in.all():
        entries, first, behind = entries[is_in], first[is_in], behind[is_in]
    if (first[1:] < behind[:-1]).any():
        reached = np.maximum.accumulate(np.concatenate([[0], behind[:-1]]))
        entries = entries[first >= reached]
    return entries
