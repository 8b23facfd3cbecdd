"""Putting the end of the log in order after a crash: cut a torn tail, drop torn frames (D1).

Only bytes that were never known to be synced are touched, and they are kept: the bytes of position
P go to ``cut/<P>``. Every step can be repeated: a crash in the middle finds the same work again.

* ``cut_tail``: the last segment is cut back to its last whole frame; segments behind it, which
  hold no whole frame, are moved to ``cut/``.
* ``drop_frames``: a torn frame with whole ones behind it becomes a ``VOID`` frame of the same
  length, in a new copy of the segment that takes the place of the old one. It must go as a unit,
  now and whenever the log is read again: half a frame may be a settlement without the dead letter
  that belongs to it.
* ``forget_old_cuts``: of what crashes left in ``cut/`` only the newest files stay.

Not here: finding out what is torn (``scan.py``). Damage below the synced mark is never touched.
"""

import errno
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.log.format import HEAD_BYTES, VOID, encode_head
from penstock.log.segment import LOG_DIR, Segment, SegmentSet
from penstock.log.storage import File, Storage
from penstock.model.errors import SyncFailed

CUT_DIR: Final = "cut"
CUT_FILES_MAX: Final = 64
CUT_BYTES_MAX: Final = 256 * 1024 * 1024
"""What is kept of bytes that nobody was promised: enough to look into the last crashes."""
NEW_SUFFIX: Final = ".new"
_COPY_BYTES: Final = 1024 * 1024
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_log = logging.getLogger(__name__)


def cut_tail(
    storage: Storage, segments: SegmentSet, segment: Segment, at: int, *, keeps_name: bool = True
) -> list[str]:
    """Cut ``segment`` at byte ``at`` and take away all segments behind it; the files kept.

    Without ``keeps_name`` all of ``segment`` goes too.
    """
    kept: list[str] = []
    doomed = [s for s in segments if s.base > segment.base or (s is segment and not keeps_name)]
    for later in reversed(doomed):  # from the end, so that a crash leaves no hole
        if later.size_bytes:
            _make_cut_dir(storage)
            kept.append(_cut_path(later.base))
            storage.rename(later.path, kept[-1])
            storage.sync_dir(CUT_DIR)
        else:
            storage.remove(later.path)
        segments.discard(later)
    if doomed:
        storage.sync_dir(LOG_DIR)
    if segment not in doomed and segment.size_bytes > at:
        kept.append(_cut_end(storage, segment, at))
    return sorted(kept)


def _cut_end(storage: Storage, segment: Segment, at: int) -> str:
    file = storage.open(segment.path, create=False)
    try:
        kept = _keep(storage, file, segment, (at, segment.size_bytes))
        file.truncate(at)
        file.sync()
    finally:
        file.close()
    segment.size_bytes = at
    return kept


def drop_frames(
    storage: Storage, segment: Segment, spans: Sequence[tuple[int, int]], *, durable_upto: int
) -> list[str]:
    """Turn byte ranges of ``segment`` into ``VOID`` frames; the files kept.

    One that reaches the end of the file is cut off instead: the next segment has its own base.
    """
    kept: list[str] = []
    if spans[-1][1] == segment.size_bytes:
        kept.append(_cut_end(storage, segment, spans[-1][0]))
        spans = spans[:-1]
        if not spans:
            return kept
    fresh_path = segment.path + NEW_SUFFIX
    file = storage.open(segment.path, create=False)
    fresh = storage.open(fresh_path, create=True)
    try:
        fresh.truncate(0)
        done = 0
        for start, end in spans:
            kept.append(_keep(storage, file, segment, (start, end)))
            copy_span(file, fresh, (done, start))
            head, _ = encode_head(
                end - start, 0, segment.base + start, durable_upto=durable_upto, flags=VOID
            )
            _write_all(fresh, head)
            for piece in _zeros(end - start - HEAD_BYTES):
                _write_all(fresh, piece)
            done = end
        copy_span(file, fresh, (done, segment.size_bytes))
        fresh.sync()
    finally:
        file.close()
        fresh.close()
    storage.rename(fresh_path, segment.path)
    storage.sync_dir(LOG_DIR)
    return kept


def remove_leftovers(storage: Storage) -> None:
    """Remove copies that a crash left unfinished."""
    if storage.exists(LOG_DIR):
        for name in storage.list(LOG_DIR):
            if name.endswith(NEW_SUFFIX):
                storage.remove(f"{LOG_DIR}/{name}")


def forget_old_cuts(storage: Storage, just_kept: Sequence[str]) -> list[str]:
    """Remove the oldest files of ``cut/`` beyond the bounds, never those just kept; the removed.

    The log only grows, so the file of the lowest position is the oldest. A failure is no reason not
    to start: the next cut tries again.
    """
    gone: list[str] = []
    try:
        bytes_kept = 0
        for files, name in enumerate(reversed(storage.list(CUT_DIR)), 1):
            path = f"{CUT_DIR}/{name}"
            bytes_kept += storage.size(path)
            is_beyond = files > CUT_FILES_MAX or bytes_kept > CUT_BYTES_MAX
            if is_beyond and path not in just_kept:
                storage.remove(path)
                gone.append(path)
    except OSError as problem:
        _log.warning("old files of cut/ stay", extra={"problem": str(problem)})
    if gone:
        _log.info(
            "old files of cut/ were removed",
            extra={"files": len(gone), "oldest": gone[-1], "newest": gone[0]},
        )
    return gone


def _make_cut_dir(storage: Storage) -> None:
    storage.make_dir(CUT_DIR)
    storage.sync_dir("")


def _cut_path(position: int) -> str:
    return f"{CUT_DIR}/{position:020d}"


def _keep(storage: Storage, file: File, segment: Segment, span: tuple[int, int]) -> str:
    """Copy bytes aside; as many as fit when the disk is full, for the broker must start."""
    _make_cut_dir(storage)
    path = _cut_path(segment.base + span[0])
    kept = storage.open(path, create=True)
    try:
        kept.truncate(0)
        copy_span(file, kept, span)
        kept.sync()
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
    finally:
        kept.close()
    storage.sync_dir(CUT_DIR)
    return path


def copy_span(source: File, target: File, span: tuple[int, int]) -> None:
    """Append bytes [start, end) of one file to another; fewer when it is shorter."""
    at, end = span
    while at < end:
        data = source.read(at, min(_COPY_BYTES, end - at))
        if not data:
            return
        _write_all(target, data)
        at += len(data)


def _write_all(file: File, data: bytes) -> None:
    while data:
        written = file.write(data)
        if written == 0:
            raise OSError(errno.ENOSPC, "the disk takes no more bytes")
        data = data[written:]


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, _COPY_BYTES))
        count -= _COPY_BYTES


# ---- distrust -----------------------------------------------------------------------------------
# After a failed sync: what reads back well may not be on the disk (P4).
#
# When ``fdatasync`` fails the kernel may mark the pages clean all the same. A restart without a
# reboot then reads whole frames from memory, the next sync has nothing to write and succeeds, and a
# later power cut takes bytes that were called durable by then. So a failed sync leaves a marker
# with the position up to which the log was known to be synced; the next start copies every segment
# with bytes above it into a new file, syncs that, and puts it in the place of the old one.
#
# The marker is written as well as the failing disk allows and never synced: it matters only as long
# as the kernel lives whose memory is not to be trusted. Every step can be repeated.


MARKER_NAME: Final = "sync-failed"
_READ_BYTES: Final = 32


def note_failed_sync(storage: Storage, synced_position: int) -> None:
    """Leave the marker, if the disk takes it."""
    try:
        file = storage.open(MARKER_NAME, create=True)
        try:
            file.truncate(0)
            file.write(b"%d\n" % synced_position)
        finally:
            file.close()
    except OSError:  # the disk is failing: nothing better can be done
        return


def rewrite_unsynced(storage: Storage) -> str:
    """At open: write anew what a failed sync left in doubt; a sentence about it, or "".

    Raises ``SyncFailed`` when that is not possible: then nothing may be built on it either.
    """
    if not storage.exists(MARKER_NAME):
        return ""
    position = _marked_position(storage)
    doubtful = [each for each in SegmentSet.load(storage).at_or_after(position) if each.size_bytes]
    try:
        for segment in doubtful:
            _rewrite(storage, segment)
        storage.remove(MARKER_NAME)
        storage.sync_dir("")
    except OSError as problem:
        raise SyncFailed(
            f"a sync had failed, and the log above position {position} cannot be written anew: "
            f"{problem}; make room or check the disk, and start the broker again"
        ) from problem
    return f"a sync had failed: {len(doubtful)} log segments were written anew"


def _marked_position(storage: Storage) -> int:
    """What the marker says; the beginning of the log when that cannot be read."""
    file = storage.open(MARKER_NAME, create=False)
    try:
        text = file.read(0, _READ_BYTES)
    finally:
        file.close()
    return int(text) if text.endswith(b"\n") and text.strip().isdigit() else 0


def _rewrite(storage: Storage, segment: Segment) -> None:
    fresh_path = segment.path + NEW_SUFFIX
    file = storage.open(segment.path, create=False)
    fresh = storage.open(fresh_path, create=True)
    try:
        fresh.truncate(0)
        copy_span(file, fresh, (0, segment.size_bytes))
        fresh.sync()
    finally:
        file.close()
        fresh.close()
    storage.rename(fresh_path, segment.path)
    storage.sync_dir(LOG_DIR)
