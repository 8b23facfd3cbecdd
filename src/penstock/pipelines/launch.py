"""One run of a pipeline: locks, states, Spark's session, and the flows in it until they are over.

Everything that can be wrong without Spark is looked at before it starts, which takes ten seconds.
Whoever calls says what is shown and when to stop; this makes, watches and ends.

Not here: what a flow's states mean (``runner.py``), the terminal and signals (``cli/pipeline.py``).
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.model.errors import PenstockError
from penstock.pipelines.figures import Figures
from penstock.pipelines.flow_file import DELTA, Flow, Pipeline
from penstock.pipelines.query import (
    FlowProblem,
    FlowQuery,
    FlowWaits,
    check_target,
    check_topics,
    load_function,
    prepare_session,
    table_schema,
    with_spark,
)
from penstock.pipelines.runner import FlowRun, Runner, SparkGone
from penstock.pipelines.state import FlowState, NotYet
from penstock.pipelines.table import Table
from penstock.spark.causes import cause_of
from penstock.spark.listener import PenstockListener
from penstock.spark.options import ROCKETMQ
from penstock.spark.package import write_executor_zip
from penstock.spark.session import local_session

LOOK_S: Final = 0.25
OF_THIS_MACHINE: Final = (
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.default.parallelism",
    "spark.sql.shuffle.partitions",
)
"""Settings of a local session that would keep a cluster from reaching the driver, or idle."""
PYSPARK_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""They print every error as JSON, whoever catches it."""
NO_GATEWAY: Final = "JAVA_GATEWAY_EXITED"
"""PySpark knows no more than this of a JVM that did not come up; the JVM has said why."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the command line says."""

    is_once: bool = False
    is_reset: bool = False
    is_accepted: bool = False
    """Go on from the checkpoint although the flow has changed."""


Show = Callable[[Sequence[Figures]], None]
Starting = Callable[[], contextlib.AbstractContextManager[Callable[[], str]]]
"""Holds what Spark's processes write to the error output while they start, and says what it was."""


@contextlib.contextmanager
def _unheard() -> Iterator[Callable[[], str]]:
    yield str


def launch(
    pipeline: Pipeline,
    flows: Sequence[Flow],
    options: RunOptions,
    *,
    show: Show,
    is_stopping: Callable[[], bool],
    session: SparkSession | None = None,
    starting: Starting = _unheard,
    wait: Callable[[float], None] = time.sleep,
) -> bool:
    """Run the flows until they are over or somebody wants them to stop; True = none has failed."""
    with contextlib.ExitStack() as held:
        states = [FlowState(pipeline.state, flow) for flow in flows]
        for state in states:
            held.enter_context(state.locked())
        check_without_spark(pipeline, flows)
        for state in states:
            if options.is_reset:
                state.reset()
            state.open(is_accepted=options.is_accepted)
            state.check_target()
        with spark_session(pipeline, session, starting) as spark:
            runner = Runner([_run(spark, pipeline, state, options) for state in states])
            is_running = True
            while is_running:
                # First: a signal may have ended Spark, too.
                if is_stopping():
                    runner.stop()
                is_running = runner.look()
                show(runner.figures)
                if is_running:
                    wait(LOOK_S)
            return not runner.has_failed


def dry_run(
    pipeline: Pipeline,
    flows: Sequence[Flow],
    *,
    session: SparkSession | None = None,
    starting: Starting = _unheard,
) -> list[tuple[Flow, list[str]]]:
    """What every flow would write, as ``column type``; raises for what would not work."""
    check_without_spark(pipeline, flows)
    for flow in flows:
        with _in_words(flow):
            check_topics(flow)
            check_target(flow)
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="penstock-dry-run-") as place,
        spark_session(pipeline, session, starting) as spark,
    ):
        for flow in flows:
            state = FlowState(Path(place), flow)
            state.path.mkdir()
            kept = FlowState(pipeline.state, flow).pinned_schema()
            if kept:
                state.pin_schema(kept)
            query = FlowQuery(spark, flow, state, home=pipeline.directory)
            with _in_words(flow):
                columns = table_schema(query.outgoing())
            found.append((flow, [f"{name} {kind.simpleString()}" for name, kind in columns]))
    return found


@contextlib.contextmanager
def _in_words(flow: Flow) -> Iterator[None]:
    """Nobody waits in a dry run."""
    try:
        yield
    except (FlowWaits, NotYet) as problem:
        raise FlowProblem(f"flow '{flow.name}': {problem}") from None


def sources_of(flows: Sequence[Flow]) -> dict[str, tuple[str, str]]:
    """Endpoint and subscription at a broker of ours, by the name of the flow and its query."""
    return {
        flow.name: (flow.source.endpoint, flow.source.subscription)
        for flow in flows
        if not flow.source.archive and not flow.source.endpoint.startswith(ROCKETMQ)
    }


def check_without_spark(pipeline: Pipeline, flows: Sequence[Flow]) -> None:
    """Functions and targets."""
    for flow in flows:
        for reference in (flow.python, flow.map):
            if reference:
                load_function(reference, pipeline.directory)
        if flow.target.is_table:
            Table(flow.target.place).check_place()
        if flow.target.kind == DELTA:
            _check_delta(flow)


def _check_delta(flow: Flow) -> None:
    try:
        __import__("deltalake")
    except ImportError:
        raise PenstockError(
            f"flow '{flow.name}': Delta needs deltalake; pip install 'penstock-broker[delta]'"
        ) from None


def _run(spark: SparkSession, pipeline: Pipeline, state: FlowState, options: RunOptions) -> FlowRun:
    query = FlowQuery(spark, state.flow, state, home=pipeline.directory)
    return FlowRun(
        state.flow,
        lambda: query.start(is_once=options.is_once),
        state,
        clock=time.monotonic,
        is_once=options.is_once,
        redacted=pipeline.redacted,
    )


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """PySpark has Ctrl-C cancel all jobs and raise; whoever runs flows ends them in good order."""
    kept = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, kept)


@contextlib.contextmanager
def _while_it_starts(pipeline: Pipeline, starting: Starting) -> Iterator[None]:
    """What keeps it from that is told in a sentence.

    A signal to the whole group of processes ends the JVM, too, whatever is being asked of it.
    """
    with starting() as said:
        try:
            with with_spark():
                yield
        except SparkGone:
            raise FlowProblem("Spark's JVM ended while it started; no flow was begun") from None
        except PenstockError:
            raise
        except Exception as problem:  # of PySpark, of Py4J, of whatever they call
            text = str(problem)
            words = (said() if NO_GATEWAY in text else "") or text
            # Before it is made shorter: half of a secret would not be found.
            raise FlowProblem(f"[spark]: {cause_of(pipeline.redacted(words))}") from None


@contextlib.contextmanager
def spark_session(
    pipeline: Pipeline, session: SparkSession | None = None, starting: Starting = _unheard
) -> Iterator[SparkSession]:
    """The session of a run, or the given one; what was started in it is stopped in any case."""
    if session is not None:
        prepare_session(session)
        yield session
        return
    # Python workers are started by the JVM and inherit this.
    known = os.environ.get("PYTHONPATH", "")
    home = str(pipeline.directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in (home, known) if each)
    with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as place:
        is_cluster = bool(pipeline.master) and not pipeline.master.startswith("local")
        master: dict[str, str | None] = {"spark.master": pipeline.master} if pipeline.master else {}
        if is_cluster:
            master |= dict.fromkeys(OF_THIS_MACHINE)
        with _own_interrupt(), _while_it_starts(pipeline, starting):
            made = local_session(
                f"penstock {pipeline.path.stem}",
                directory=Path(place),
                settings={**master, **pipeline.settings},
                # A flow's error is told in a sentence; a stack for each task that was tried hides
                # it.
                log_level=pipeline.settings.get("spark.log.level", "off"),
            )
            for name in PYSPARK_LOGGERS:
                PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
            # When the JVM goes first, a thread of PySpark would print a stack.
            counting: Any = getattr(made.sparkContext, "_accumulatorServer", None)
            if counting is not None:
                counting.handle_error = lambda *_: None
            if is_cluster:
                # Executors of a cluster have nothing of ours.
                made.sparkContext.addPyFile(str(write_executor_zip(Path(place))))
            listener = PenstockListener(
                redacted=pipeline.redacted, sources=sources_of(pipeline.flows)
            )
            made.streams.addListener(listener)
            prepare_session(made)
        try:
            yield made
        finally:
            with contextlib.suppress(Exception):
                for query in made.streams.active:
                    query.stop()
            with contextlib.suppress(Exception):
                made.stop()
            if home in sys.path:
                sys.path.remove(home)
