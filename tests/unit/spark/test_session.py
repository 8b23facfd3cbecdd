"""What a local session is told, without starting one."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock
from penstock.spark import session


def test_everything_is_kept_in_the_directory_and_on_loopback(tmp_path):
    settings = session.default_settings(tmp_path, cores=2)
    assert settings["spark.master"] == "local[2,4]"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    written = ("spark.local.dir", "spark.sql.warehouse.dir")
    assert all(tmp_path in Path(settings[each]).parents for each in written)
    assert tmp_path.resolve().as_uri() in settings["spark.driver.extraJavaOptions"]


def test_a_brief_session_compiles_less(tmp_path):
    options = "spark.driver.extraJavaOptions"
    assert session.BRIEF_JVM in session.default_settings(tmp_path, is_brief=True)[options]
    assert session.BRIEF_JVM not in session.default_settings(tmp_path)[options]


def test_workers_run_this_interpreter_with_this_penstock(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
        # Set once, so that it is taken back after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    session._prepare_workers()
    session._prepare_workers()
    root = str(Path(penstock.__file__).parents[1])
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYTHONPATH"] == os.pathsep.join([root, "/elsewhere"])


def test_an_installed_penstock_is_not_put_before_pythons_own_modules(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "python")
    monkeypatch.setattr(penstock, "__file__", "/venv/lib/site-packages/penstock/__init__.py")
    session._prepare_workers()
    assert os.environ["PYTHONPATH"] == "/elsewhere"


def builder_of(master):
    """Makes a session that is none."""
    context = SimpleNamespace(master=master, setLogLevel=lambda level: None)
    made = SimpleNamespace(getOrCreate=lambda: SimpleNamespace(sparkContext=context))
    made.appName = lambda name: made
    made.config = lambda key, value: made
    return made


@pytest.mark.parametrize(
    ("master", "is_known"), [("local[2,4]", True), ("spark://127.0.0.1:7077", False)]
)
def test_a_source_is_registered_at_once_where_no_zip_comes_after_it(
    tmp_path, monkeypatch, master, is_known
):
    """What is registered finds its modules in the files of that moment, on executors for good."""
    registered = []
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder_of(master)))
    monkeypatch.setattr(session, "register_source", registered.append)
    monkeypatch.setattr(session, "use_java", lambda: None)
    monkeypatch.setattr(session, "_prepare_workers", lambda: None)
    made = session.local_session(directory=tmp_path)
    assert registered == [made] * is_known
