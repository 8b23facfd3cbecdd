"""Histograms: counts per bound, cumulative when read."""

from penstock.telemetry.statistics import Histogram


def test_buckets_are_cumulative_and_end_at_infinity():
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 5.0, 100.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2.0), ("10.0", 3.0), ("+Inf", 4.0)]
    assert histogram.count == 4
    assert histogram.sum == 106.5
