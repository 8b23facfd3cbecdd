"""``penstock pipeline``: run flows from a file with Spark, begin such a file, compact tables."""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli.endpoint import FLIGHT, find_endpoint, takes_flight
from penstock.cli.why import Screen
from penstock.model.errors import NotFound, PenstockError, SettingsError
from penstock.model.ids import size_text
from penstock.pipelines.figures import Figures
from penstock.pipelines.flow_file import DELTA, Flow, Pipeline, load_pipeline
from penstock.spark.causes import cause_of
from penstock.spark.options import size

SHIPPED: Final = ("example", "archive", "replay")
LINE_S: Final = 10.0
"""Between two lines of a flow that works on, where there is no terminal."""
NOISE: Final = (
    b"WARNING: Using incubator modules",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"Picked up JAVA_TOOL_OPTIONS",
)
"""What Java and Spark say at every start."""
LAST_WORDS_S: Final = 1.0
"""To read what a JVM that ends has still to say."""
HELD_LINES_MAX: Final = 1000
"""Of what is said while Spark starts; the last ones."""
MARK: Final = b"\0penstock\0"
"""Whoever reads it has read what was written before."""


@click.group("pipeline", short_help="Topics through Spark into topics and tables, from a file.")
def command() -> None:
    """Run flows from a TOML file: topics through Spark into topics, Parquet and Delta.

    FILE may also be the name of a pipeline that comes with Penstock: archive, replay.
    """


@command.command("run")
@click.argument("file")
@click.option("--flow", "names", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@click.option("--once", "is_once", is_flag=True, help="What there is now, then end.")
@click.option("--reset", "is_reset", is_flag=True, help="Forget checkpoints and begin anew.")
@click.option(
    "--accept-change",
    "is_accepted",
    is_flag=True,
    help="Go on from the checkpoint of a flow although the flow has changed.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Check everything, start nothing.")
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="For ${NAME} in FILE.")
@click.option("--state", type=click.Path(path_type=Path), help="Where checkpoints are.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line.")
@takes_flight
def run(file: str, *, names: tuple[str, ...], is_dry: bool, **chosen: Any) -> None:
    """Run the flows of FILE until Ctrl-C or SIGTERM, or with --once to their end.

    Exit code 0: all flows ended well. 1: one failed. 2: FILE or the usage is wrong.
    """
    pipeline = _loaded(file, **{each: chosen.pop(each) for each in ("given", "state")}, **{
        each: chosen.pop(each) for each in ("flight", "data")
    })  # fmt: skip
    flows = pipeline.only(names)
    need_spark()
    with no_secret(pipeline.redacted), error_output(pipeline.redacted) as errors:
        if is_dry:
            _dry_run(pipeline, flows, errors, is_json=chosen["is_json"])
        else:
            _run(pipeline, flows, errors, **chosen)


@command.command("init")
@click.argument("file", type=click.Path(path_type=Path), default="pipeline.toml")
@click.option(
    "--from", "kind", type=click.Choice(SHIPPED), default="example", help="What to begin with."
)
def init(file: Path, kind: str) -> None:
    """Write a pipeline to begin with to FILE [pipeline.toml]; it runs as it is."""
    if file.exists():
        raise SettingsError(f"{file} exists; give another name, or delete it first")
    try:
        file.write_text(shipped(kind).read_text("utf-8"), "utf-8")
    except OSError as problem:
        raise SettingsError(f"{file} cannot be written ({problem.strerror})") from None
    arguments = "" if kind == "example" else "; its first lines say how"
    click.echo(f"{file} written. Run it: penstock pipeline run {file}{arguments}")


@command.command("compact")
@click.argument("places", nargs=-1, required=True, metavar="TABLE|FILE...")
@click.option("--size", "target", default="256MiB", metavar="SIZE", help="Of a file [256MiB]")
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="For ${NAME} in FILE.")
@click.option("--json", "is_json", is_flag=True, help="The answer as JSON.")
def compact(places: tuple[str, ...], *, target: str, given: tuple[str, ...], is_json: bool) -> None:
    """Merge small files of tables, named by directory or by the FILE of their flows.

    Flows may go on writing and readers reading. A reader that listed files just before they were
    merged may find them gone: it says so, and is run again.
    """
    need_spark()
    from penstock.pipelines.compaction import compact as compact_table
    from penstock.pipelines.table import Table
    from penstock.pipelines.table_sink import compact_delta

    try:
        target_bytes = size(target)
    except ValueError as problem:
        raise SettingsError(f"--size: {problem}") from None
    answers = []
    for kind, path, redacted in _tables(places, _values(given)):
        with no_secret(redacted):
            if kind == DELTA:
                done = compact_delta(path, target_bytes)
                counts = {"before": done["numFilesRemoved"], "after": done["numFilesAdded"]}
            else:
                counts = compact_table(Table(path), target_bytes=target_bytes).__dict__
        answers.append({"table": redacted(str(path)), **counts})
    if is_json:
        import json

        click.echo(json.dumps(answers, indent=2))
        return
    for each in answers:
        if not each["before"]:
            click.echo(f"{each['table']}: nothing to merge")
            continue
        rows = f", {each['rows']:,} rows, {size_text(each['bytes'])}" if "rows" in each else ""
        click.echo(f"{each['table']}: {each['before']:,} files became {each['after']:,}{rows}")


def shipped(name: str) -> Any:
    """A file that comes with Penstock."""
    return files("penstock.pipelines") / "shipped" / f"{name}.toml"


def need_spark() -> None:
    """Say what to install, before an import fails in words that help nobody."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise PenstockError("pipelines need Spark: pip install 'penstock-broker[spark]'")


def _loaded(
    file: str, *, given: Iterable[str], state: Path | None, flight: str, data: Path | None
) -> Pipeline:
    path = Path(file)
    home = None
    if not path.exists() and path.stem in SHIPPED and path.name in (path.stem, f"{path.stem}.toml"):
        # Its paths are relative to where it is run: nobody writes beside installed files.
        path, home = Path(str(shipped(path.stem))), Path.cwd()
    return load_pipeline(
        path,
        directory=home,
        given=_values(given),
        state=state,
        endpoint=lambda: find_endpoint(FLIGHT, flight, data),
    )


def _values(given: Iterable[str]) -> dict[str, str]:
    """What ``--set`` says, by name."""
    values = {}
    for each in given:
        name, is_one, value = each.partition("=")
        if not is_one:
            raise SettingsError(f"--set {each!r}: write it like NAME=VALUE")
        values[name] = value
    return values


def _tables(
    places: Sequence[str], values: dict[str, str]
) -> list[tuple[str, Path, Callable[[str], str]]]:
    """Kind and path of each, and what takes secrets out of what is said of it."""
    found: list[tuple[str, Path, Callable[[str], str]]] = []
    for place in places:
        path = Path(place)
        if path.is_dir():
            found.append((DELTA if (path / "_delta_log").is_dir() else "parquet", path, str))
        elif path.is_file():
            pipeline = load_pipeline(path, given=values)
            targets = [each.target for each in pipeline.flows if each.target.is_table]
            found += [(each.kind, Path(each.place), pipeline.redacted) for each in targets]
        else:
            raise NotFound(f"{place} is neither a table nor a pipeline file")
    return found


def _dry_run(
    pipeline: Pipeline, flows: Sequence[Flow], errors: "ErrorOutput", *, is_json: bool
) -> None:
    from penstock.pipelines.launch import dry_run

    for flow, columns in dry_run(pipeline, flows, starting=errors.starting):
        target = flow.target
        if is_json:
            import json

            said = {"flow": flow.name, "to": {target.kind: target.place}, "columns": columns}
            click.echo(pipeline.redacted(json.dumps(said)))
        else:
            line = f"{flow.name}: to {target.kind} {target.place}: {', '.join(columns)}"
            click.echo(pipeline.redacted(line))


def _run(pipeline: Pipeline, flows: Sequence[Flow], errors: "ErrorOutput", **chosen: Any) -> None:
    from penstock.pipelines.launch import RunOptions, launch

    is_json = chosen.pop("is_json")
    options = RunOptions(**chosen)
    stopping: list[int] = []

    def stop(number: int, _: object) -> None:
        stopping.append(number)
        if stopping.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    if not is_json:
        click.echo(
            f"{pipeline.path.name}: Spark starts; Ctrl-C ends the flows in good order, a second one"
            " at once"
        )
    is_well = launch(
        pipeline,
        flows,
        options,
        show=output(is_json=is_json, is_once=options.is_once),
        is_stopping=lambda: bool(stopping),
        starting=errors.starting,
    )
    if not is_well:
        raise SystemExit(1)


# ---- what is shown ------------------------------------------------------------------------------


class JsonLines:
    """A program: one object for every batch and every change of a flow."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, str]] = {}

    def __call__(self, figures: Sequence[Figures]) -> None:
        for each in figures:
            now = (each.batch, each.state)
            if self._shown.get(each.flow) != now:
                self._shown[each.flow] = now
                click.echo(each.as_json())


class PlainLines:
    """A file or a pipe: a line of a flow when its state changes, and of one that works on."""

    def __init__(self, *, is_once: bool) -> None:
        self._is_once = is_once
        self._shown: dict[str, tuple[str, str]] = {}
        self._next_s: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def __call__(self, figures: Sequence[Figures]) -> None:
        now = time.monotonic()
        for each in figures:
            state = ("running" if each.state == "idle" else each.state, each.text)
            line = each.bar() if self._is_once else each.line()
            if self._shown.get(each.flow) == state and (
                now < self._next_s[each.flow] or line == self._said[each.flow]
            ):
                continue
            self._shown[each.flow], self._next_s[each.flow] = state, now + LINE_S
            self._said[each.flow] = line
            click.echo(f"{time.strftime('%H:%M:%S')}  {line}")


class LiveLines:
    """A terminal: one line a flow, always the same ones."""

    def __init__(self, *, is_once: bool) -> None:
        self._is_once = is_once
        self._screen = Screen()
        self._last: list[str] = []

    def __call__(self, figures: Sequence[Figures]) -> None:
        lines = [each.bar() if self._is_once else each.line() for each in figures]
        if lines != self._last:
            self._last = lines
            self._screen.show(lines)


@contextlib.contextmanager
def no_secret(redacted: Callable[[str], str]) -> Iterator[None]:
    """What goes wrong is told without them."""
    try:
        yield
    except PenstockError as problem:
        kind = SettingsError if isinstance(problem, SettingsError) else PenstockError
        raise kind(redacted(str(problem))) from None
    except BrokenPipeError:
        raise
    except Exception as problem:  # Python would print it with all that it came through
        words = cause_of(redacted(str(problem)))
        raise PenstockError(f"{type(problem).__name__}: {words}") from None


class ErrorOutput:
    """Lines on their way to the error output, without secrets and without what is only noise."""

    def __init__(self, redacted: Callable[[str], str], out: int) -> None:
        self._redacted: Final = redacted
        self._out: Final = out
        self._lock: Final = threading.Lock()
        self._held: deque[str] | None = None
        self._has_caught_up: Final = threading.Event()

    def copy(self, reading: int) -> None:
        """To the end of a pipe, in a thread of its own."""
        with open(reading, "rb") as lines:
            for line in lines:
                said = line.replace(MARK, b"")
                with self._lock:
                    if not said.startswith(NOISE) and (said == line or said != b"\n"):
                        self._take(self._redacted(said.decode("utf-8", "replace")))
                if said != line:
                    self._has_caught_up.set()
        os.close(self._out)

    @contextlib.contextmanager
    def starting(self) -> Iterator[Callable[[], str]]:
        """While Spark does. What was said is shown when it has; else it is one sentence's cause."""
        self._held = deque[str](maxlen=HELD_LINES_MAX)
        yield self._said
        with self._lock:
            held, self._held = self._held, None
            for line in held:
                self._take(line)

    def _said(self) -> str:
        """All of it: what was written before now is read by then."""
        self._has_caught_up.clear()
        os.write(2, MARK + b"\n")
        self._has_caught_up.wait(LAST_WORDS_S)
        with self._lock:
            return "".join(self._held or ())

    def _take(self, line: str) -> None:
        if self._held is not None:
            self._held.append(line)
            return
        with contextlib.suppress(OSError):
            os.write(self._out, line.encode())


@contextlib.contextmanager
def error_output(redacted: Callable[[str], str]) -> Iterator[ErrorOutput]:
    """Whatever writes to the error output, Spark's processes among them, shows no secret there.

    They inherit the descriptor, and nobody can ask them what they write; so it is a pipe to here.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    back = os.dup(kept)
    made = ErrorOutput(redacted, kept)
    thread = threading.Thread(target=made.copy, args=(reading,), name="error-output", daemon=True)
    thread.start()
    try:
        yield made
    finally:
        sys.stderr.flush()
        os.dup2(back, 2)
        os.close(back)
        thread.join(LAST_WORDS_S)


def output(*, is_json: bool, is_once: bool) -> JsonLines | PlainLines | LiveLines:
    if is_json:
        return JsonLines()
    if sys.stdout.isatty() and shutil.get_terminal_size().columns >= 40:
        return LiveLines(is_once=is_once)
    return PlainLines(is_once=is_once)
