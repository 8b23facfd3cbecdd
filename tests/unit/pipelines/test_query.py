"""What of a flow can be told without a session: its functions."""

import sys

import pytest

from penstock.pipelines.query import FlowProblem, load_function


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
