"""The data source itself: which PySpark it works with."""

import pytest

from penstock.spark.options import BadOption
from penstock.spark.source import check_version


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "3.5.9"])
def test_an_older_pyspark_is_refused_with_what_to_do(version):
    with pytest.raises(BadOption, match=rf"needs PySpark 4.2 or newer, this is {version}; pip"):
        check_version(version)


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.10.1", "5.0.0.dev1"])
def test_what_the_tests_were_run_with_and_newer_is_taken(version):
    check_version(version)
