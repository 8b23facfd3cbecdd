"""A local Spark session that works on any machine, quietly, for demos, tests and first steps.

    spark = local_session()
    spark.readStream.format("penstock").option("endpoint", "127.0.0.1:8815")...

Java is found by ``java.py``, workers run this interpreter with this Penstock, nothing listens but
on loopback, a failed task is tried again (plain ``local[N]`` does not), and what Spark has to
say below ERROR is dropped. Everything it writes is under one directory.

Not here: a cluster; there the same source works with any session of your own.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

import penstock
from penstock.spark.java import use_java
from penstock.spark.source import PenstockSource

TASK_TRIES: Final = 4
CORES_MAX: Final = 4
"""Of a default session: enough for one machine's broker, and it leaves the rest alone."""

LOGGING: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""
ARROW_JVM: Final = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
"""Arrow in the JVM looks twice at every value unless it is told not to."""
BRIEF_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For sessions of seconds: the first compiler only, and no code made for each query."""


def local_session(
    name: str = "penstock",
    *,
    cores: int | None = None,
    directory: Path | None = None,
    settings: Mapping[str, str | None] | None = None,
    is_brief: bool = False,
    log_level: str = "error",
) -> SparkSession:
    """A session in this process, or the one there already is.

    ``settings`` are Spark's own and win over ours; None leaves one to Spark. Without ``directory``
    a temporary one is made. On a cluster call ``register_source`` once executors have their zip.
    """
    place = directory or Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    place.mkdir(parents=True, exist_ok=True)
    use_java()
    _prepare_workers()
    chosen = {**default_settings(place, cores=cores, is_brief=is_brief), **(settings or {})}
    _log4j(place).write_text(LOGGING.format(level=log_level))
    builder = SparkSession.builder.appName(name)
    for key, value in chosen.items():
        if value is not None:
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level.upper())
    if str(session.sparkContext.master).startswith("local"):
        register_source(session)
    return session


def register_source(spark: SparkSession, source: type[DataSource] = PenstockSource) -> None:
    """Make a source known to a session, so that its queries may start at the same time.

    A query that starts writes into the environment that all queries of its source share, and what
    Spark (4.3) takes for that is no map for two threads. Now and then an entry was counted twice;
    from then on no task with that source could be serialised, until the JVM was started anew
    ("Illegal size 5 of collection, expected 6").

    Executors find the source in files that were there by then: ``addPyFile`` comes first.
    """
    context: Any = spark.sparkContext
    kept = context.pythonExec, context.environment
    # Planning and commits run beside the driver, where executors' Python and what it lacks have no
    # place; what Spark finds by itself is run by the driver's Python, too.
    context.pythonExec = os.environ.get("PYSPARK_DRIVER_PYTHON", context.pythonExec)
    context.environment = context._jvm.java.util.concurrent.ConcurrentHashMap(context.environment)
    try:
        spark.dataSource.register(source)
    finally:
        context.pythonExec, context.environment = kept


def default_settings(
    directory: Path, *, cores: int | None = None, is_brief: bool = False
) -> dict[str, str]:
    """Spark's settings of a local session that keeps to ``directory``."""
    count = cores or min(os.cpu_count() or 1, CORES_MAX)
    options = f"-Dlog4j2.configurationFile={_log4j(directory).as_uri()} {ARROW_JVM}"
    brief = {"spark.sql.codegen.wholeStage": "false"} if is_brief else {}
    return {
        **brief,
        "spark.master": f"local[{count},{TASK_TRIES}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{options} {BRIEF_JVM}" if is_brief else options,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Files for four cores, not for the two hundred tasks of a cluster.
        "spark.default.parallelism": str(count),
        "spark.sql.shuffle.partitions": str(count),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.streaming.checkpointLocation": str(directory / "checkpoints"),
    }


def _prepare_workers() -> None:
    """Python workers are started by the JVM, which inherits this environment."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    root = Path(penstock.__file__).parents[1]
    known = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    # An installed Penstock is found anyway, and its neighbours must not come before Python's own.
    if root.name not in ("site-packages", "dist-packages") and str(root) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *known])


def _log4j(directory: Path) -> Path:
    return directory.resolve() / "log4j2.properties"
