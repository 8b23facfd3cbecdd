"""Which of the Python client's tests are run, and how their report is read."""

import pytest

from kit.pulsar_suite import LEFT_OUT, OFFLINE, REST, check, counted
from penstock.model.errors import PenstockError

REPORT = """<testsuites><testsuite>
<testcase classname="tests.pulsar_test.PulsarTest" name="test_send"/>
<testcase classname="tests.pulsar_test.PulsarTest" name="test_seek"><failure/></testcase>
<testcase classname="tests.pulsar_test.PulsarTest" name="test_close"><error/></testcase>
<testcase classname="tests.pulsar_test.PulsarTest" name="test_other"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_outcome(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert counted(report) == (1, 1, ["PulsarTest::test_seek", "PulsarTest::test_close"])


def test_no_test_is_in_two_tiers():
    assert len(REST) == 14
    assert not REST & LEFT_OUT
    assert not (REST | LEFT_OUT) & OFFLINE


def test_a_directory_without_the_tests_is_refused(tmp_path):
    with pytest.raises(PenstockError, match="no checkout of apache/pulsar-client-python"):
        check(tmp_path)
