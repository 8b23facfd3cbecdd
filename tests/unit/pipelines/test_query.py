"""What of a flow can be told without a session: functions, and what Spark says."""

import sys

import pytest

from penstock.pipelines.query import FlowProblem, first_lines, load_function

PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was thrown:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()

  File "shop.py", line 2, in enrich
    raise ValueError(
penstock.spark.options.BadOption: there is no option 'x';
 did you mean y?
 SQLSTATE: 38000
	at org.apache.spark.Executor.run(Executor.scala:1)
"""
PLAIN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nosuch` cannot be resolved. \
Did you mean one of the following? [`key`]. SQLSTATE: 42703; line 1 pos 7;
'Project ['nosuch]
+- SubqueryAlias messages
"""


def test_of_what_spark_says_the_cause_is_told():
    assert first_lines(Exception(PYTHON)) == "BadOption: there is no option 'x';"
    assert first_lines(Exception(PLAIN)).startswith("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column")
    assert "Project" not in first_lines(Exception(PLAIN))
    busy = first_lines(Exception("x\nPython worker failed to connect back.\ny"))
    assert busy.endswith("this machine is too busy")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "flow_functions.py").write_text("def double(row): return row\nnumber = 1\n")
    (tmp_path / "flow_broken.py").write_text("import nosuch_module\n")
    yield tmp_path
    sys.modules.pop("flow_functions", None)


def test_functions_are_found_beside_the_file(home):
    assert load_function("flow_functions:double", home)({"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("flow_functions:doble", "module flow_functions has no function doble"),
        ("flow_functions:number", "has no function number"),
        ("flow_nosuch:f", "No module named 'flow_nosuch'; modules are looked for in"),
        ("flow_broken:f", "No module named 'nosuch_module'"),
    ],
)
def test_a_function_that_is_not_there_is_told(home, reference, words):
    with pytest.raises(FlowProblem, match=words):
        load_function(reference, home)
