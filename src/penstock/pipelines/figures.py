"""What there is to see of a running flow: rows, rate, lag, admission, retries, dead letters.

Spark tells of each batch when it is done (``StreamingQueryProgress``, here its JSON). Rows are
counted by offsets, since a source that is read for two branches of a query counts twice in Spark's
own figure. What the source knows (lag in seconds, admitted rows) stands in its latest offset, what
the flow counts (retries, dead letters, new fields) among the observed metrics.

Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

BAR_CHARACTERS: Final = 24
RATE_WEIGHT: Final = 0.5
"""Of the last batch in the rate that is shown."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One flow, now."""

    flow: str
    state: str = "starting"
    """starting, running, idle, waiting (for its next start), stopping, stopped, done or failed."""
    batch: int = -1
    rows: int = 0
    """Read in this run."""
    rows_out: int = 0
    rows_per_s: float = 0.0
    batch_s: float = 0.0
    lag_messages: int = 0
    lag_s: float = 0.0
    admitted_rows: int = 0
    retries: int = 0
    dead: int = 0
    late: int = 0
    """Rows that came after the watermark and were dropped."""
    new_fields: int = 0
    """Rows with JSON fields that the kept schema does not have."""
    new_field: str = ""
    """One of them."""
    restarts: int = 0
    text: str = ""
    """What went wrong last."""
    told: str = ""
    """The progress that was counted last: Spark repeats it until there is another."""

    def after(self, progress: Mapping[str, Any]) -> "Figures":
        """The same with one more batch, as Spark tells it."""
        sources = progress.get("sources") or [{}]
        source = sources[0]
        rows = rows_between(source.get("startOffset"), source.get("endOffset"))
        ahead = rows_between(source.get("endOffset"), source.get("latestOffset"))
        latest = parsed(source.get("latestOffset"))
        took_s = (progress.get("durationMs") or {}).get("triggerExecution", 0) / 1000
        observed = progress.get("observedMetrics") or {}
        counted = as_counts(observed.get("penstock_flow"))
        decoded = as_counts(observed.get("penstock_decode"))
        rate = rows / took_s if took_s else 0.0
        smooth = RATE_WEIGHT * rate + (1 - RATE_WEIGHT) * self.rows_per_s
        late = sum(
            int(each.get("numRowsDroppedByWatermark", 0))
            for each in progress.get("stateOperators") or ()
        )
        told = f"{progress.get('runId')}/{progress.get('batchId')}/{progress.get('timestamp')}"
        is_new = told != self.told
        return replace(
            self,
            told=told,
            state="running" if rows else "idle",
            batch=int(progress.get("batchId", -1)),
            rows=self.rows + rows if is_new else self.rows,
            rows_out=self.rows_out + int(counted.get("rows") or 0) * is_new,
            rows_per_s=(smooth if self.rows_per_s else rate) if rows else 0.0,
            batch_s=took_s,
            lag_messages=ahead,
            lag_s=int(latest.get("lag_ms") or 0) / 1000 if rows or ahead else 0.0,
            admitted_rows=int(latest.get("admitted_rows") or 0),
            retries=self.retries + int(counted.get("retries") or 0) * is_new,
            dead=self.dead + int(counted.get("dead") or 0) * is_new,
            late=self.late + late * is_new,
            new_fields=self.new_fields + int(decoded.get("new_fields") or 0) * is_new,
            new_field=str(decoded.get("new_field") or self.new_field),
        )

    def as_json(self) -> str:
        shown = asdict(self)
        del shown["told"]
        return json.dumps(shown)

    def line(self) -> str:
        """For people."""
        parts = [f"{self.flow}: {self.state}"]
        if self.batch >= 0:
            parts += [
                f"{self.rows:,} rows",
                f"{self.rows_per_s:,.0f}/s",
                f"lag {self.lag_messages:,} ({self.lag_s:.1f} s)",
                f"batches of {self.admitted_rows:,}" if self.admitted_rows else "",
                f"{self.batch_s:.1f} s each" if self.batch_s else "",
            ]
        parts += [
            f"{self.retries:,} retried" if self.retries else "",
            f"{self.dead:,} dead" if self.dead else "",
            f"{self.late:,} late" if self.late else "",
            f"{self.new_fields:,} with new fields ({self.new_field})" if self.new_fields else "",
            f"started {self.restarts + 1} times" if self.restarts else "",
            # Told when it failed; once more when it is started would be noise.
            self.text if self.state != "starting" else "",
        ]
        return ", ".join(part for part in parts if part)

    def bar(self) -> str:
        """The same for a run that comes to an end: how far it is."""
        total = self.rows + self.lag_messages
        if self.batch < 0 or not total:
            return self.line()
        share = self.rows / total
        full = int(share * BAR_CHARACTERS)
        drawn = "#" * full + "-" * (BAR_CHARACTERS - full)
        parts = [
            f"{self.flow} [{drawn}] {share:.0%}",
            f"{self.rows:,} of {total:,} rows",
            f"{self.rows_per_s:,.0f}/s" if self.rows_per_s else "",
            f"{self.lag_messages / self.rows_per_s:,.0f} s left"
            if self.rows_per_s and self.lag_messages
            else "",
            f"{self.retries:,} retried" if self.retries else "",
            f"{self.dead:,} dead" if self.dead else "",
            self.text or (self.state if self.state not in ("running", "idle") else ""),
        ]
        return ", ".join(part for part in parts if part)


def rows_between(start: Any, end: Any) -> int:
    """Messages from one offset of a source to another; queues that are new count from their begin.

    Of an archive the number of rows.
    """
    low, high = parsed(start), parsed(end)
    if "row" in high:
        return max(0, int(high["row"]) - int(low.get("row", 0)))
    begins, before = high.get("begins", {}), low.get("offsets", {})
    total = 0
    for topic, queues in high.get("offsets", {}).items():
        for queue, offset in queues.items():
            begin = begins.get(topic, {}).get(queue, before.get(topic, {}).get(queue))
            # A queue that is only in the latest offset is not begun: all of it is ahead.
            total += max(0, offset - (begin if begin is not None else 0))
    return total


def parsed(offset: Any) -> dict[str, Any]:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) else {}


def as_counts(row: Any) -> dict[str, Any]:
    """A row of observed metrics, however Spark's version gives it."""
    if row is None:
        return {}
    if hasattr(row, "asDict"):
        found: dict[str, Any] = row.asDict()
        return found
    return dict(row)
