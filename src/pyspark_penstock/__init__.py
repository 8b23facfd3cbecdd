"""Where Spark finds ``format("penstock")``: it looks into every module named ``pyspark_*``.

It wants a ``DefaultSource``. Not here: anything else; all such modules are imported by every Spark
session.
"""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
