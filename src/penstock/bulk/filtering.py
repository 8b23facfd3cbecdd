"""Which rows a reader wants: tags by the hash in the index first, SQL92 by the record's properties.

Filters are the broker's own (``engine/filter``), so a query sees what a RocketMQ consumer with the
same expression sees. A tag filter leaves records unread whose hash says no; SQL92 costs a loop.

Not here: the rows (``columns.py``).
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bulk.columns import Rows
from penstock.bulk.layout import Column
from penstock.bulk.link import BAD_REQUEST
from penstock.bulk.tickets import TAG, BulkError, RowFilter
from penstock.engine.filter.filters import parse_tags
from penstock.engine.filter.sql92 import Selector, compile_selector
from penstock.model.errors import SelectorInvalid
from penstock.model.record import tag_hash


class Wanted:
    """A compiled filter; one that wants everything costs nothing."""

    def __init__(self, row_filter: RowFilter | None) -> None:
        self._tags: pa.Array | None = None
        self._hashes: Column | None = None
        self._selector: Selector | None = None
        if row_filter is None:
            return
        try:
            if row_filter.kind != TAG:
                self._selector = compile_selector(row_filter.text)
                return
            tags = parse_tags(row_filter.text)
        except SelectorInvalid as problem:
            raise BulkError(BAD_REQUEST, f"filter: {problem}") from None
        if tags is not None:
            self._tags = pa.array(sorted(tags), pa.string())
            self._hashes = np.array([tag_hash(tag.encode()) for tag in tags], np.int32)

    def entries(self, entries: Column) -> Column | None:
        """Which entries can be wanted by their hash and are a record of their own; None = all.

        Messages of a batch have tags of their own, and no hash.
        """
        if self._hashes is None:
            return None
        wanted: Column = np.isin(entries["tag_hash"], self._hashes) | (entries["messages"] > 1)
        return wanted

    def keep(self, rows: Rows) -> None:
        """Leave only the wanted rows."""
        if self._selector is not None:
            matches, gathered = self._selector.matches, rows.gathered
            judged = np.zeros(len(rows), np.bool_)
            for row in range(len(rows)):
                record = gathered.record(row)
                judged[row] = matches(rows.origin(record.wire).reader.selectable(record))
            rows.take(np.flatnonzero(judged))
        elif self._tags is not None:
            # Two tags may share a hash, so the text decides.
            is_wanted = pc.is_in(rows.tags(), self._tags)
            rows.take(np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False)))
