r"""Keeps the flows of a pipeline running: starts, watches, starts again, and brings them to rest.

    starting -> running <-> idle -> done                       (``--once``, and replays)
                   |  \-> stopping -> stopped                  (SIGTERM)
                   v
                waiting -> starting ... -> failed              (it did not get a batch done)

A flow whose query fails is started again, at first after a second and then after twice as long each
time, up to a minute; a batch that is done makes it begin with a second again. A topic that is not
there yet, or has no message to infer a schema from, is looked for every ``NOT_YET_S``. After
``RESTARTS_MAX`` starts without a batch it has failed, and the others go on. What is wrong with the
flow itself is no case for another start.

To come to rest, the source offers nothing more, the batch that runs ends, and then the query is
stopped; after ``STOP_S`` it is stopped as it is, and the next run does that batch again.

Nothing here knows Spark: a flow is started by a function, and time comes from a clock.
Not here: how a query is made (``query.py``), the terminal (``cli/pipeline.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from penstock.model.errors import PenstockError
from penstock.pipelines.figures import Figures
from penstock.pipelines.flow_file import Flow
from penstock.pipelines.state import NotYet
from penstock.spark.causes import SLOW_START, cause_of

RESTART_S: Final = 1.0
RESTART_S_MAX: Final = 60.0
NOT_YET_S: Final = 2.0
"""Between two looks for what a flow waits for; a look costs a question to the broker."""
RESTARTS_MAX: Final = 10
"""Starts in a row without a batch; with the pauses between them some six minutes."""
RESTARTS_MAX_ONCE: Final = 3
STOP_S: Final = 30.0
STARTS_AT_ONCE: Final = 2
"""A start is some processes of Python and much compiling; more at a time only wait for each other,
and Spark's patience with each of them is short."""
START_S: Final = 20.0
"""A flow whose first batch takes longer than this does not keep others from their start."""
TEXT_CHARACTERS_MAX: Final = 500
OVER: Final = ("stopped", "done", "failed")
RESET: Final = "begin anew with --reset"
FINAL: Final = ("checkpoint was rewound", "--reset", "spark.stage_batch_bytes_max")
"""What somebody must decide: another start would only say it again."""
GONE: Final = "Spark's JVM is gone: the next run does again what it had begun"
NEW_CHECKPOINT: Final = "begin with a new checkpoint"
"""What source and sink advise those who made their checkpoint themselves."""


class SparkGone(Exception):
    """Spark itself has ended, by a signal to the whole process group or by somebody's kill."""


class RunningQuery(Protocol):
    """What is needed of Spark's; each of them may raise ``SparkGone``."""

    def is_active(self) -> bool: ...

    def problem(self) -> str | None:
        """Why it ended; None = it did not fail."""
        ...

    def progress(self) -> Sequence[Mapping[str, Any]]:
        """The last batches, oldest first."""
        ...

    def stop(self) -> None: ...


class Rest(Protocol):
    """How a source is told to offer nothing more (``FlowState``)."""

    def pause(self) -> None: ...

    @property
    def is_paused(self) -> bool: ...


class FlowRun:
    """One flow from its first start to its end."""

    def __init__(
        self,
        flow: Flow,
        start: Callable[[], RunningQuery],
        rest: Rest,
        *,
        clock: Callable[[], float],
        is_once: bool = False,
        redacted: Callable[[str], str] = str,
    ) -> None:
        """``redacted`` takes secrets out of what Spark says."""
        self.flow: Final = flow
        self.figures = Figures(flow=flow.name)
        self._start: Final = start
        self._rest: Final = rest
        self._clock: Final = clock
        self._redacted: Final = redacted
        self._is_once: Final = is_once
        self._tries_max: Final = RESTARTS_MAX_ONCE if is_once else RESTARTS_MAX
        self._query: RunningQuery | None = None
        self._next_start = clock()
        self._began = 0.0
        self._has_told = False
        """True when the query that runs has told of a batch, or that there is none."""
        self._is_told_why = False
        """True while the text says what it waits for, and not what went wrong."""
        self._pause_s = RESTART_S
        self._failures = 0
        """In a row, without a batch in between."""
        self._stop_by: float | None = None

    @property
    def is_over(self) -> bool:
        return self.figures.state in OVER

    @property
    def is_starting(self) -> bool:
        """True while it does what only a start does."""
        is_new = self._query is not None and not self._has_told
        return is_new and self._clock() - self._began < START_S

    @property
    def would_start(self) -> bool:
        return self._query is None and self._stop_by is None and not self.is_over

    def look(self) -> None:
        """Do what is to be done now."""
        if self.is_over:
            return
        try:
            if self._query is not None:
                self._watch(self._query)
            elif self._stop_by is not None:
                self._become("stopped")
            elif self._clock() >= self._next_start:
                self._begin()
        except SparkGone:
            # No start helps: the session is of this process, and there is no other.
            self._query = None
            self._become("failed" if self._stop_by is None else "stopped", GONE)

    def stop(self) -> None:
        """Come to rest; ``look`` until it is over."""
        if self._stop_by is None and not self.is_over:
            self._stop_by = self._clock() + STOP_S
            self._rest.pause()
            if self._query is not None:
                self._become("stopping")

    # Private, in call order.

    def _begin(self) -> None:
        self._become("starting")
        self._began, self._has_told = self._clock(), False
        try:
            self._query = self._start()
            if self._is_told_why:
                self._is_told_why = False
                self.figures = replace(self.figures, text="")
        except NotYet as problem:
            # Nobody's fault: who runs on waits for it, who runs once does not.
            if self._is_once:
                self._failed(str(problem))
            else:
                self._next_start = self._clock() + NOT_YET_S
                self._become("waiting", str(problem))
                self._is_told_why = True
        except PenstockError as problem:
            self._become("failed", str(problem))
        except SparkGone:
            raise
        except Exception as problem:  # Spark's, of any kind: it may pass
            self._failed(cause_of(problem))

    def _watch(self, query: RunningQuery) -> None:
        is_active = query.is_active()
        self._count(query)
        if is_active:
            self._end_if_due(query)
            return
        self._query = None
        problem = query.problem()
        if self._stop_by is not None:
            self._become("stopped")
        elif problem is None:
            self._become("done")
        else:
            self._failed(problem)

    def _count(self, query: RunningQuery) -> None:
        for progress in query.progress():
            self._has_told = True
            if int(progress.get("batchId", -1)) < self.figures.batch:
                continue
            before = self.figures
            self.figures = before.after(progress)
            if self.figures.batch != before.batch:
                self._failures, self._pause_s = 0, RESTART_S
                self.figures = replace(self.figures, text="")
        if self._stop_by is not None:
            self._become("stopping")

    def _end_if_due(self, query: RunningQuery) -> None:
        if self._stop_by is None:
            return
        if self._rest.is_paused or self._clock() >= self._stop_by:
            query.stop()
            self._query = None
            self._become("stopped")

    def _failed(self, text: str) -> None:
        self._failures += 1
        text = text.replace(NEW_CHECKPOINT, RESET)
        if any(words in text for words in FINAL):
            self._become("failed", text)
            return
        tries_max = RESTARTS_MAX if SLOW_START in text else self._tries_max
        if self._failures >= tries_max:
            self._become("failed", text)
            return
        self._next_start = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, RESTART_S_MAX)
        self.figures = replace(self.figures, restarts=self.figures.restarts + 1)
        self._become("waiting", text)

    def _become(self, state: str, text: str = "") -> None:
        # Whoever shows it says whose it is.
        text = text.removeprefix(f"flow '{self.flow.name}': ")
        said = " ".join(self._redacted(text).split())[:TEXT_CHARACTERS_MAX] or self.figures.text
        self.figures = replace(self.figures, state=state, text=said)


class Runner:
    """All flows of a run."""

    def __init__(self, runs: Sequence[FlowRun]) -> None:
        self.runs: Final = tuple(runs)
        self._is_stopping = False

    def look(self) -> bool:
        """Look at every flow; False when all of them are over."""
        starting = sum(run.is_starting for run in self.runs)
        for run in self.runs:
            if run.would_start and starting >= STARTS_AT_ONCE:
                continue
            run.look()
            starting = sum(each.is_starting for each in self.runs)
        return any(not run.is_over for run in self.runs)

    def stop(self) -> None:
        """Bring all of them to rest."""
        if not self._is_stopping:
            self._is_stopping = True
            for run in self.runs:
                run.stop()

    @property
    def figures(self) -> list[Figures]:
        return [run.figures for run in self.runs]

    @property
    def has_failed(self) -> bool:
        return any(each.state == "failed" for each in self.figures)
