"""The template for Spark Declarative Pipelines runs as it is: every order once, over two runs.

Spark runs these on Spark Connect, which needs packages that nothing else here does; they are
fetched into a directory of the test. With ``--long`` only: two JVMs and half a minute a run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.client import Message
from penstock.spark.java import use_java

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

TEMPLATE = Path(__file__).parents[2] / "examples" / "declarative"
NEEDED = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard", "pyyaml")
RUN_SECONDS_MAX = 240


def test_the_template_writes_every_large_order_once(bench, admin, producer, tmp_path):
    extra = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(extra), *NEEDED]
    subprocess.run(install, check=True)
    project = tmp_path / "project"
    shutil.copytree(TEMPLATE, project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text().replace("127.0.0.1:8815", bench.endpoint)
    spec.write_text(text.replace("storage-root", f"file://{tmp_path}/storage"))
    for topic in ("orders", "large-orders"):
        admin.create_topic(topic, queues=2)

    def order(amount):
        producer.send(Message("orders", b'{"item": "teapot", "amount": %d}' % amount))

    for amount in (20, 120, 300):
        order(amount)
    producer.send(Message("orders", b"no order at all"))
    run(project, extra)
    assert amounts(bench) == [120, 300]
    order(500)
    run(project, extra)
    assert amounts(bench) == [120, 300, 500]


def run(project, extra):
    use_java()
    home = Path(pyspark.__file__).parent
    path = [str(extra), *(each for each in sys.path if each)]
    done = subprocess.run(
        [str(home / "bin" / "spark-pipelines"), "run"],
        cwd=project,
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def amounts(bench):
    rows = bench.table(topics="large-orders").selectExpr(
        "cast(get_json_object(cast(body as string), '$.amount') as double) as amount"
    )
    return sorted(int(row.amount) for row in rows.collect())
