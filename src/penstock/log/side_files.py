"""Side files: append-only files that can be made again from the log (indexes, delays, keys).

One rule for all of them: bytes are handed over with ``append`` in the loop and written by the
commit thread, in order; a catalog row per file says how long it was and what its crc32c was when
the last snapshot was taken. At open every file is cut back to its row and checked against it, so
nothing that was written after the snapshot, or never reached the disk, is believed; files without
a row go. So correctness never rests on a sync of theirs; yet a power cut would cost a rebuild, and
therefore the files a snapshot describes are synced before it, a few with each commit, as long as
they are not too many (``SYNCS_MAX``).

A write that fails (disk full) stays first in line and is tried again with the next commit. A
removed file stays on disk until a snapshot without its row is durable: until then recovery might
want it. Hence a name is used once.

Files that are *not kept* are for what a process would rather not hold in memory and the next one
finds out anew: no row, no sync, unlinked at open.

Not here: what is in the files (``index.py``, ``delayed.py``, ``key_index.py``).
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Final, Protocol

import msgspec
from google_crc32c import extend as crc32c_extend

from penstock.log.catalog import Op
from penstock.log.storage import File, Storage
from penstock.model.errors import LogCorrupt

FILE_KIND: Final = "file"
HANDLES_MAX: Final = 64
"""Open side files kept for reading, whatever the number of queues."""
JOB_STEPS_MAX: Final = 250
JOB_BYTES_MAX: Final = 4 * 1024 * 1024
"""What one commit writes into side files at most, so that confirms do not wait long for it."""
JOB_SYNCS_MAX: Final = 4
"""Side files synced in one commit: each costs about as much as the sync of the log itself."""
SYNCS_MAX: Final = 64
"""With more changed files than this a snapshot syncs none: it would take longer than a rebuild."""
CLEARED_MAX: Final = 250
"""Files of a directory unlinked in one step."""
CHECK_BYTES: Final = 4 * 1024 * 1024


class Owner(Protocol):
    """Whoever handed bytes over; told when they can be read from the file."""

    def written(self, path: str, size: int) -> None:
        """``size`` more bytes of ``path`` are on file."""
        ...


class Action(Enum):
    """What a step does to its file."""

    WRITE = 1
    REMOVE = 2
    SYNC = 3
    SYNC_NAMES = 4
    """Sync the directory ``path``."""
    CLEAR = 5
    """Unlink what is in the directory ``path``, some at a time, then the directory and those above
    it, as far as they are empty."""
    PRUNE = 6
    """The directories only."""


class Step:
    """One thing for the commit thread to do."""

    __slots__ = ("action", "at", "data", "has_more", "owner", "path")

    def __init__(
        self,
        action: Action,
        path: str,
        *,
        at: int = 0,
        data: bytes = b"",
        owner: Owner | None = None,
    ) -> None:
        self.action = action
        self.path = path
        self.at = at
        """Where ``data`` begins: the size of the file before."""
        self.data = data
        self.owner = owner
        self.has_more = False
        """Set by the commit thread: it did its part, and the same is to be done again."""


class SideFiles:
    """All side files of a data directory: planned states, waiting steps, handles for reading."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._states: dict[str, tuple[int, int]] = {}
        self._changed: set[str] = set()
        self._steps: deque[Step] = deque()
        self._handles: OrderedDict[str, File] = OrderedDict()
        self._known_dirs: set[str] = set()
        self._new_names_in: set[str] = set()
        self._doomed: list[str] = []
        """Removed since the last snapshot was captured."""
        self._captured_doomed: list[str] = []
        """Removed before that: unlinked when it is durable."""
        self.steps_planned = 0
        self.steps_done = 0
        self.write_failures = 0

    def append(
        self, path: str, data: bytes, owner: Owner | None = None, *, is_kept: bool = True
    ) -> None:
        """Plan to write ``data`` at the end of ``path``.

        A file that is not kept has no row and is never synced: it ends with the process.
        """
        size, crc = self._states.get(path, (0, 0))
        self._plan(Step(Action.WRITE, path, at=size, data=data, owner=owner))
        self._states[path] = (size + len(data), crc32c_extend(crc, data) if is_kept else 0)
        if not is_kept:
            return
        self._changed.add(path)
        if not size:
            self._new_names_in.add(path.rpartition("/")[0])

    def discard(self, path: str) -> None:
        """Unlink a file that is not kept, once what was handed over before is written."""
        self._states.pop(path, None)
        self._plan(Step(Action.REMOVE, path))

    def prune(self, directory: str) -> None:
        """Remove directories that nothing is left in, once what was discarded before is gone."""
        self._plan(Step(Action.PRUNE, directory))

    def discard_all(self, directory: str) -> None:
        """Unlink all files of a directory that are not kept, and the directory."""
        self._plan(Step(Action.CLEAR, directory))

    def remove(self, path: str) -> None:
        """Unlink ``path`` once a snapshot without it is durable; it may be gone already."""
        self._states.pop(path, None)
        self._changed.add(path)
        self._doomed.append(path)

    def forget_row(self, path: str) -> None:
        """At open: the row of ``path`` is of no use and goes with the next snapshot."""
        self._changed.add(path)

    def planned_size(self, path: str) -> int:
        """Bytes the file has once every step is done."""
        return self._states.get(path, (0, 0))[0]

    def paths(self, prefix: str) -> list[str]:
        """Planned files below a directory, in order of name."""
        return sorted(path for path in self._states if path.startswith(prefix))

    def take_rows(self) -> list[Op]:
        """Plan the syncs a snapshot wants and give the rows of files changed since the last one."""
        living = [path for path in sorted(self._changed) if path in self._states]
        if len(living) <= SYNCS_MAX:
            for path in living:
                self._plan(Step(Action.SYNC, path))
            for directory in sorted(self._new_names_in):
                self._plan(Step(Action.SYNC_NAMES, directory))
        self._new_names_in.clear()
        self._captured_doomed, self._doomed = self._doomed, []
        ops: list[Op] = []
        for path in sorted(self._changed):
            state = self._states.get(path)
            ops.append((FILE_KIND, path, msgspec.json.encode(state) if state else None))
        self._changed.clear()
        return ops

    def snapshot_written(self) -> None:
        """The rows of the last ``take_rows`` are durable."""
        for path in self._captured_doomed:
            self._plan(Step(Action.REMOVE, path))
        self._captured_doomed = []

    def steps(self) -> list[Step]:
        """The next steps, as many as one commit should do."""
        taken: list[Step] = []
        size = syncs = 0
        for step in self._steps:
            if len(taken) >= JOB_STEPS_MAX or size >= JOB_BYTES_MAX or syncs >= JOB_SYNCS_MAX:
                break
            taken.append(step)
            size += len(step.data)
            syncs += step.action in (Action.SYNC, Action.SYNC_NAMES)
        return taken

    @property
    def waiting(self) -> int:
        return len(self._steps)

    def run(self, steps: list[Step]) -> int:
        """Commit thread: do ``steps`` in order; how many were done before one failed.

        A failed sync is not tried again and called good: it raises (P4).
        """
        for done, step in enumerate(steps):
            if step.action is Action.SYNC:
                self._sync(step.path)
                continue
            if step.action is Action.SYNC_NAMES:
                self._storage.sync_dir(step.path)
                continue
            try:
                if step.action is Action.REMOVE:
                    self._unlink(step.path)
                elif step.action is Action.CLEAR:
                    step.has_more = self._clear(step.path)
                elif step.action is Action.PRUNE:
                    self._prune(step.path)
                else:
                    self._write(step.path, step.at, step.data)
            except OSError:
                self.write_failures += 1
                return done
        return len(steps)

    def done(self, count: int) -> None:
        """Loop: the first ``count`` waiting steps are on file; tell their owners."""
        for _ in range(count):
            step = self._steps.popleft()
            self.steps_done += 1
            if step.action is Action.REMOVE:
                self._forget_handle(step.path)
            elif step.has_more:
                self._plan(Step(step.action, step.path))
            elif step.owner is not None:
                step.owner.written(step.path, len(step.data))

    def run_all(self) -> None:
        """Do every waiting step now (at open, before there is a commit thread); may raise."""
        while self._steps:
            steps = self.steps()
            count = self.run(steps)
            self.done(count)
            if count < len(steps):
                raise LogCorrupt(
                    f"cannot write {self._steps[0].path}; make room on the disk and start again"
                )

    def read(self, path: str, at: int, size: int) -> bytes:
        """Bytes already on file; fewer than asked for means damage and raises."""
        handle = self._handles.get(path)
        if handle is None:
            handle = self._storage.open(path, create=False)
            self._handles[path] = handle
            if len(self._handles) > HANDLES_MAX:
                self._handles.popitem(last=False)[1].close()
        else:
            self._handles.move_to_end(path)
        data = handle.read(at, size)
        if len(data) != size:
            raise LogCorrupt(
                f"{path} is shorter than it was; restart the broker to rebuild it from the log"
            )
        return data

    def restore(self, rows: Iterable[tuple[str, bytes]]) -> list[str]:
        """At open: cut each file back to its row and check it; the paths that are not right."""
        damaged: list[str] = []
        for path, body in rows:
            size, crc = msgspec.json.decode(body, type=tuple[int, int])
            if self._cut_and_check(path, size, crc):
                self._states[path] = (size, crc)
            else:
                damaged.append(path)
                self._changed.add(path)  # whatever becomes of it, the row is not right any more
        return damaged

    def clear(self, directory: str) -> None:
        """At open: forget and unlink every file below ``directory`` that has no state."""
        if not self._storage.exists(directory):
            return
        for name in self._storage.list(directory):
            path = f"{directory}/{name}"
            if path in self._states:
                continue
            if "." in name:
                self._storage.remove(path)
            else:
                self.clear(path)

    def drop(self, prefix: str) -> None:
        """At open: forget the states below ``prefix`` and unlink the files."""
        for path in self.paths(prefix):
            del self._states[path]
            self._changed.add(path)
            self._unlink(path)

    def close(self) -> None:
        while self._handles:
            self._handles.popitem()[1].close()

    def _plan(self, step: Step) -> None:
        self._steps.append(step)
        self.steps_planned += 1

    def _cut_and_check(self, path: str, size: int, crc: int) -> bool:
        try:
            file = self._storage.open(path, create=False)
        except OSError:
            return False
        try:
            if file.size() < size:
                return False
            if file.size() > size:
                file.truncate(size)
            seen = 0
            for at in range(0, size, CHECK_BYTES):
                seen = crc32c_extend(seen, file.read(at, min(CHECK_BYTES, size - at)))
            return seen == crc
        except OSError:
            return False
        finally:
            file.close()

    def _write(self, path: str, at: int, data: bytes) -> None:
        directory = path.rpartition("/")[0]
        if directory not in self._known_dirs:
            self._storage.make_dir(directory)
            self._known_dirs.add(directory)
        file = self._storage.open(path, create=True)
        try:
            if file.size() != at:
                file.truncate(at)  # left over from a write that failed half-way
            while data:
                taken = file.write(data)
                if taken <= 0:
                    raise OSError(f"{path} took no bytes")
                data = data[taken:]
        finally:
            file.close()

    def _sync(self, path: str) -> None:
        try:
            file = self._storage.open(path, create=False)
        except FileNotFoundError:  # removed by a later step of an earlier, failed round
            return
        try:
            file.sync()
        finally:
            file.close()

    def _unlink(self, path: str) -> None:
        try:
            self._storage.remove(path)
        except FileNotFoundError:
            return

    def _clear(self, directory: str) -> bool:
        """Unlink some of the files of a directory; True when there are more."""
        try:
            names = self._storage.list(directory)
        except FileNotFoundError:
            return False
        for name in names[:CLEARED_MAX]:
            self._unlink(f"{directory}/{name}")
        if len(names) > CLEARED_MAX:
            return True
        self._prune(directory)
        return False

    def _prune(self, directory: str) -> None:
        while "/" in directory:
            try:
                self._storage.remove_dir(directory)
            except OSError:  # somebody has put something there, or was faster
                return
            directory = directory.rpartition("/")[0]

    def _forget_handle(self, path: str) -> None:
        handle = self._handles.pop(path, None)
        if handle is not None:
            handle.close()
