"""``penstock spark``: what Spark needs of Penstock beside a session."""

from pathlib import Path

import click

from penstock.cli.http_client import say
from penstock.model.errors import PenstockError


@click.group("spark", short_help="What a Spark cluster needs.")
def command() -> None:
    """What Spark needs of Penstock beside a session."""


@command.command("package")
@click.argument("path", type=click.Path(path_type=Path), default=".")
def package(path: Path) -> None:
    """Write the zip that executors need to PATH (a file or a directory; default: here).

    Pure Python: the workers of a cluster need pyspark and pyarrow, and nothing of Penstock.
    """
    from penstock.spark.package import write_executor_zip

    try:
        written = write_executor_zip(path)
    except OSError as problem:
        raise PenstockError(f"{path} cannot be written ({problem.strerror})") from None
    say(f"{written}  {written.stat().st_size:,} bytes")
    say(f"  spark-submit --py-files {written} ...")
    say(f'  or in a session: spark.sparkContext.addPyFile("{written}")')
