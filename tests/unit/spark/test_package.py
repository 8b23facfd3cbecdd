"""The zip for executors: it runs with nothing of ours installed, and beside a whole Penstock."""

import json
import os
import pickle
import subprocess
import sys
import sysconfig

from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.spark.package import FILES, executor_zip, write_executor_zip
from penstock.spark.source import PenstockSource

BARE = """
import sys
sys.path[:] = [each for each in sys.path if not each.endswith(("/src", "/tests"))]
sys.path.insert(1, sys.argv[1])
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("msgspec", "google_crc32c", "cramjam", "lark"):
            raise ImportError(f"an executor has no {name}")
sys.meta_path.insert(0, Refused())
import importlib, json, pickle, penstock
from pathlib import Path
names = json.loads(sys.argv[2])
for name in names:
    importlib.import_module(name)
writer, reader = pickle.loads(bytes.fromhex(sys.stdin.read()))
print(json.dumps([penstock.__file__, type(writer).__name__, type(reader).__name__]))
"""


def run(program, *arguments, text="", **environment):
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        input=text, capture_output=True, text=True, check=False, env={**kept, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def modules():
    names = [name.removesuffix(".py").replace("/", ".") for name in FILES]
    return ["penstock." + name for name in names if not name.endswith("__init__")]


def test_an_executor_with_the_zip_alone_has_all_it_needs(tmp_path):
    written = write_executor_zip(tmp_path)
    schema = StructType([StructField("body", BinaryType())])
    writer = PenstockSource({"topic": "out"}).streamWriter(schema, False)
    source = PenstockSource({"topics": "orders"})
    sent = pickle.dumps((writer, source.reader(source.schema()))).hex()
    where, wrote, read = run(BARE, str(written), json.dumps(modules()), text=sent)
    assert where.startswith(str(written))
    assert (wrote, read) == ("PenstockStreamWriter", "TaskReader")


BESIDE = """
import json, sys
sys.path.insert(1, sys.argv[1])
import penstock.bulk.client, penstock.spark.readers, penstock.spark.sink
print(json.dumps([penstock.spark.sink.__file__, penstock.bulk.client.__file__]))
"""


def test_on_the_driver_the_installed_penstock_goes_on_behind_the_zip(tmp_path):
    written = write_executor_zip(tmp_path / "executor.zip")
    from_zip, installed = run(BESIDE, str(written))
    assert from_zip.startswith(str(written))
    assert not installed.startswith(str(written))


def test_the_same_penstock_makes_the_same_bytes():
    assert executor_zip() == executor_zip()
    assert sysconfig.get_config_var("EXT_SUFFIX").encode() not in executor_zip()
