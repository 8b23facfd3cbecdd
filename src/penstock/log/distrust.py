"""After a failed sync: what reads back well may not be on the disk (P4).

When ``fdatasync`` fails the kernel may mark the pages clean all the same. A restart without a
reboot then reads whole frames from memory, the next sync has nothing to write and succeeds, and a
later power cut takes bytes that were called durable by then. So a failed sync leaves a marker with
the position up to which the log was known to be synced; the next start copies every segment with
bytes above it into a new file, syncs that, and puts it in the place of the old one.

The marker is written as well as the failing disk allows and never synced: it matters only as long
as the kernel lives whose memory is not to be trusted. Every step can be repeated.

Not here: frames that did not survive (``scan.py`` cuts or drops them like any torn ones).
"""

from typing import Final

from penstock.log.repair import NEW_SUFFIX, copy_span
from penstock.log.segment import LOG_DIR, Segment, SegmentSet
from penstock.log.storage import Storage
from penstock.model.errors import SyncFailed

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
