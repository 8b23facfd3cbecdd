"""Spark on Penstock: the source, how much it admits per batch, and a session to try it with.

``java.py`` and ``session.py`` start a local Spark; the data source is found by its short name
``penstock`` through ``pyspark_penstock``. Nothing here is imported by the broker.

    from penstock.spark import PenstockListener
    spark.streams.addListener(PenstockListener())
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.listener import PenstockListener
    from penstock.spark.session import local_session

__all__ = ["PenstockListener", "local_session"]


def __getattr__(name: str) -> Any:
    """What needs Spark is imported when it is asked for: ``java.py`` must do without."""
    if name == "PenstockListener":
        from penstock.spark.listener import PenstockListener

        return PenstockListener
    if name == "local_session":
        from penstock.spark.session import local_session

        return local_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
