"""Every program ``examples/bulk_*.py`` runs as it is; those without their library are skipped."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.bulk_data import BulkData
from penstock.model.record import neutral_record

EXAMPLES = Path(__file__).parents[3] / "examples"
SECONDS_MAX = 60


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("pyarrow", "orders: 200 messages in 2 queues"),
        ("pandas", "200 rows"),
        ("polars", "200 rows"),
        ("duckdb", "200 rows"),
    ],
)
def test_a_topic_is_read_with(serve, tmp_path, library, said):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    data = BulkData(tmp_path / "data")
    queues = data.topic("orders", 2)
    made = [neutral_record(b"%d" % n, tag=b"A" if n % 3 else b"") for n in range(200)]
    data.append(*((record, (queues[n % 2],)) for n, record in enumerate(made)))
    data.close()
    _, server = serve(tmp_path / "data")

    command = [
        sys.executable,
        EXAMPLES / f"bulk_{library}.py",
        f"127.0.0.1:{server.port}",
        "orders",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
