"""Where Spark finds ``format("penstock")``: it looks into every module named ``pyspark_*``.

Not here: anything else; all such modules are imported by every Spark session.
"""

from penstock.spark.source import PenstockSource


class DefaultSource(PenstockSource):
    """The name Spark looks for."""
