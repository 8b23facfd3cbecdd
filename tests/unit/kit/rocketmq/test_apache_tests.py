"""``penstock interop rocketmq-tests``: what is run, what is read from a class, what is refused."""

import pytest
from click.testing import CliRunner

from kit import interop
from kit.rocketmq import apache_tests
from kit.rocketmq.apache_tests import Case, classes, is_good, pom, read, tell
from penstock.model.errors import PenstockError

POM = """<project><parent><groupId>org.apache.rocketmq</groupId>
<artifactId>rocketmq-all</artifactId>
<version>5.3.3</version></parent><artifactId>rocketmq-test</artifactId></project>"""
SAID = """01:02:03 |-INFO something of a logger
penstock passed testOne 474
java.lang.AssertionError: expected:<1> but was:<2>

penstock failed testTwo[batch:_2] 12004 java.lang.AssertionError: expected:<1> but was:<2>

penstock skipped testThree 0 by the suite
"""
FAILED = Case("pop.PopIT.testTwo[batch:_2]", "failed", 12.004,
              "java.lang.AssertionError: expected:<1> but was:<2>")  # fmt: skip


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(apache_tests.shutil, "which", lambda tool: tool)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "pom.xml").write_text(POM)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(interop.command, ["rocketmq-tests", *map(str, arguments)])


def test_each_test_of_a_class_is_read_whatever_else_the_class_prints():
    assert read("pop.PopIT", SAID) == [
        Case("pop.PopIT.testOne", "passed", 0.474, ""),
        FAILED,
        Case("pop.PopIT.testThree", "skipped", 0.0, "by the suite"),
    ]


def test_what_a_class_finished_before_it_hung_is_counted():
    cases = read("pop.PopIT", SAID, "not done after 420 s")
    assert len(cases) == 4
    assert cases[-1] == Case("pop.PopIT", "failed", 0.0, "not done after 420 s")


def test_a_class_that_said_nothing_failed():
    (case,) = read("pop.PopIT", "Error: Could not find or load main class")
    assert case.how == "failed"
    assert "Could not find" in case.why


def test_a_failure_with_a_reason_is_set_apart_and_told_with_it(monkeypatch, capsys):
    passed = Case("pop.PopIT.testOne", "passed", 0.4, "")
    assert not is_good([passed, FAILED])
    monkeypatch.setattr(apache_tests, "DIFFERENT", {"pop.PopIT.testTwo": "we do it otherwise"})
    assert is_good([passed, FAILED])
    assert not is_good([FAILED])
    tell([passed, FAILED])
    said = capsys.readouterr().out
    assert "differs: pop.PopIT.testTwo[batch:_2]: we do it otherwise" in said
    assert "1 passed, 0 failed, 1 differ for a reason, 0 skipped" in said
    assert "left out: container.*: Apache's broker container" in said


def test_classes_that_need_an_embedded_broker_are_left_out(checkout):
    root = checkout / "test" / "src" / "test" / "java" / "org" / "apache" / "rocketmq" / "test"
    for name in ("container/AIT", "offset/OffsetNotFoundIT", "pop/PopIT", "pop/BasePop"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.java").touch()
    assert classes(checkout) == ["pop.PopIT"]
    assert classes(checkout, "delay") == []


def test_the_artifacts_are_those_of_the_checkouts_version(checkout):
    assert apache_tests.checked(checkout) == "5.3.3"
    assert "<version>5.3.3</version><type>pom</type><scope>import</scope>" in pom("5.3.3")
    assert "<artifactId>rocketmq-tools</artifactId>" in pom("5.3.3")


def test_a_directory_that_is_no_checkout_is_refused(checkout):
    (checkout / "test" / "pom.xml").write_text("<project/>")
    result = run(checkout)
    assert isinstance(result.exception, PenstockError)
    assert "no checkout of apache/rocketmq" in str(result.exception)


@pytest.mark.parametrize("tool", ["mvn", "javac", "java"])
def test_a_missing_tool_is_named(tmp_path, monkeypatch, tool):
    monkeypatch.setattr(apache_tests.shutil, "which", lambda name: None if name == tool else name)
    assert f"{tool} is not installed" in str(run(tmp_path).exception)
