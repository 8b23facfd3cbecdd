"""What executors of a cluster need of Penstock, as one zip for ``--py-files``.

Pure Python, and no compiled dependency beyond pyspark and pyarrow: the workers of a cluster need
nothing of ours installed. The driver has Penstock installed, and Spark puts the zip before it on
the path of the driver's own Python workers, too; so every package in the zip lets the installed one
of the same name go on behind it (``pkgutil.extend_path``).

Not here: why these modules and no others suffice (``tasks.py``, ``sink.py``).
"""

import io
import zipfile
from pathlib import Path
from typing import Final

import penstock

NAME: Final = "penstock-executor.zip"
FILES: Final = (
    "__init__.py",
    "bulk/__init__.py",
    "bulk/rows.py",
    "bulk/tickets.py",
    "model/__init__.py",
    "model/errors.py",
    "model/spark_batch.py",
    "pipelines/__init__.py",
    "pipelines/archive_source.py",
    "pipelines/letters.py",
    "pipelines/table.py",
    "pipelines/table_sink.py",
    "spark/__init__.py",
    "spark/options.py",
    "spark/schema.py",
    "spark/sink.py",
    "spark/source.py",
    "spark/tasks.py",
)
"""Of the package ``penstock``; ``tests/unit/spark/test_package.py`` runs them alone."""
EXTEND: Final = """

from pkgutil import extend_path as _extend_path

__path__ = _extend_path(__path__, __name__)
"""
_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""The same sources give the same bytes: clusters cache files by their checksum."""


def executor_zip() -> bytes:
    """The zip; the same for the same Penstock."""
    root = Path(penstock.__file__).parent
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            text = (root / name).read_text("utf-8")
            if name.endswith("__init__.py"):
                text = text.rstrip() + EXTEND
            archive.writestr(zipfile.ZipInfo(f"penstock/{name}", _DATE), text)
    return made.getvalue()


def write_executor_zip(path: Path) -> Path:
    """Write it; into a directory under its usual name."""
    place = path / NAME if path.is_dir() else path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(executor_zip())
    return place
