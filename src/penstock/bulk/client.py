"""The driver's side of the bulk lane: questions to the broker, beside the rows of ``rows.py``.

``put_stage`` puts rows beside the log and ``commit_batch`` makes them visible (D19); a commit that
broke is asked for again, which changes nothing when it was done.

Not here: the questions (``model/queries.py``), reading files (``offline.py``). Imports the model
and what is beside it only (D15).
"""

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.bulk.rows import CALL_S_MAX, RowClient
from penstock.bulk.tickets import BulkError
from penstock.model.queries import (
    RESPONSES,
    AbortBatchRequest,
    AbortBatchResponse,
    AnyRequest,
    AnyResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    LeaseRequest,
    LeaseResponse,
    OffsetMap,
    OffsetsByTimeRequest,
    OffsetsByTimeResponse,
    PollRequest,
    PollResponse,
    ReleaseRequest,
    ResolveRequest,
    ResolveResponse,
    SinkStateRequest,
    SinkStateResponse,
)
from penstock.model.spark_batch import HELD

COMMIT_WAIT_MS: Final = 15_000
"""How long one question for a commit waits at the broker; then it is asked again."""
COMMIT_PATIENCE_S: Final = 600.0
"""How long a commit waits for topics that are above their limit, in all."""


class BulkClient(RowClient):
    """Talks to one Flight port."""

    # Questions

    def resolve(
        self,
        topics: list[str] | None = None,
        *,
        pattern: str | None = None,
        optional: Sequence[str] = (),
    ) -> ResolveResponse:
        """Topics, their queues and what can be read of each; ``optional`` ones if they exist."""
        asked = ResolveRequest(topics=topics, pattern=pattern, optional=list(optional))
        answer = self.ask(asked)
        assert isinstance(answer, ResolveResponse)
        return answer

    def poll(self, request: PollRequest[int]) -> PollResponse[int]:
        """Where the next batch ends; waits at the broker up to ``request.wait_ms``."""
        answer = self.ask(request, wait_s=request.wait_ms / 1000)
        assert isinstance(answer, PollResponse)
        return answer

    def by_time(self, topic: str, at_ms: int) -> OffsetMap:
        """First offsets stored at or after a time."""
        answer = self.ask(OffsetsByTimeRequest(topic=topic, at_ms=at_ms))
        assert isinstance(answer, OffsetsByTimeResponse)
        return answer.offsets

    def lease(self, question: LeaseRequest) -> LeaseResponse:
        """Keep what a subscription has not processed."""
        answer = self.ask(question)
        assert isinstance(answer, LeaseResponse)
        return answer

    def release(self, subscription: str, *, checkpoint: str = "", is_final: bool = False) -> None:
        """Nothing need be kept for it; with ``checkpoint`` for that one of its queries."""
        self.ask(
            ReleaseRequest(subscription=subscription, checkpoint=checkpoint, is_final=is_final)
        )

    def ask(
        self, question: AnyRequest, *, wait_s: float = 0.0, patience_s: float | None = None
    ) -> AnyResponse:
        """Any question of ``queries.ACTIONS``."""
        name = str(question.__struct_config__.tag)
        answer = self.call(
            name,
            msgspec.json.encode(question),
            call_s_max=CALL_S_MAX + wait_s if patience_s is None else patience_s,
            patience_s=self.patience_s if patience_s is None else patience_s,
        )
        return msgspec.json.decode(answer, type=RESPONSES[name])

    # Staged writes

    def commit_batch(
        self, request: CommitBatchRequest, *, patience_s: float = COMMIT_PATIENCE_S
    ) -> CommitBatchResponse:
        """The puts it names become visible together; returns when that is durable.

        Waits for topics above their limit; after ``patience_s`` an error of kind "held" says for
        which. Nothing is visible then, and the same commit may be asked for again.
        """
        deadline = time.monotonic() + patience_s
        while True:
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            request.wait_ms = min(COMMIT_WAIT_MS, left_ms)
            answer = self.ask(request, wait_s=request.wait_ms / 1000)
            assert isinstance(answer, CommitBatchResponse)
            if not answer.held:
                return answer
            if not left_ms:
                raise BulkError(
                    HELD,
                    f"batch {request.batch} of sink '{request.sink}' waited {patience_s:.0f} s and "
                    f"is not committed: {answer.held}",
                )

    def abort_batch(self, request: AbortBatchRequest) -> AbortBatchResponse:
        """Puts that count no more; a batch that is committed stays so."""
        answer = self.ask(request)
        assert isinstance(answer, AbortBatchResponse)
        return answer

    def sink_state(self, sink: str, query: str) -> SinkStateResponse:
        """The last batch of a query that is visible in a sink."""
        answer = self.ask(SinkStateRequest(sink=sink, query=query))
        assert isinstance(answer, SinkStateResponse)
        return answer
