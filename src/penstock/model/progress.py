"""How a bulk query did its last batch, put together from what several parties say of it (F18).

One word for all of them: tasks and listener of Spark, the messages on the bulk socket, the engine.
Not here: what follows from it (``engine/spark/query.py``, ``flow/diagnosis.py``).
"""

import msgspec


class BatchProgress(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How a query did its last batch; times that are not known are 0."""

    rows: int = 0
    bytes: int = 0
    batch_ms: float = 0
    """From the end of the batch before to the end of this one."""
    work_ms: float = 0
    """All of the batch's tasks, reading and writing included; only Spark itself can tell."""
    read_ms: float = 0
    transform_ms: float = 0
    sink_ms: float = 0
    batch_id: int = -1
    query_id: str = ""
    query_name: str = ""

    def over(self, before: "BatchProgress") -> "BatchProgress":
        """This word, with what earlier ones said and this one does not know.

        A batch is told of by its tasks (read and transform), the listener (the whole, and sink) and
        the next poll (rows and the whole), in any order. Rows of a task are not the batch's.
        """
        is_whole = self.batch_ms > 0
        return BatchProgress(
            rows=self.rows if is_whole else before.rows,
            bytes=(self.bytes if is_whole else 0) or before.bytes,
            batch_ms=self.batch_ms or before.batch_ms,
            work_ms=self.work_ms or before.work_ms,
            read_ms=self.read_ms or before.read_ms,
            transform_ms=self.transform_ms or before.transform_ms,
            sink_ms=self.sink_ms or before.sink_ms,
            batch_id=self.batch_id if self.batch_id >= 0 else before.batch_id,
            query_id=self.query_id or before.query_id,
            query_name=self.query_name or before.query_name,
        )

    @property
    def slow_part(self) -> str:
        """read, transform or sink, whichever took longest; empty when that is not known.

        A task that read all its rows at once does not see what they cost behind it; Spark's own
        figure for the tasks does.
        """
        behind_ms = max(self.transform_ms, self.work_ms - self.read_ms)
        parts = {"read": self.read_ms, "transform": behind_ms, "sink": self.sink_ms}
        name = max(parts, key=lambda each: parts[each])
        return name if parts[name] > 0 else ""
