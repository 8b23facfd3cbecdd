"""Publisher confirms: which publishes of a channel are answered, in as few words as possible (F4).

Who grants: the log, when a sync has covered a publish. Who spends: the channel, one token per
publish. Who stops: nobody here (``pending`` does). What wakes it: the end of a commit or a turn.

Tokens of a channel are consecutive numbers in publish order (AMQP's publish sequence number). Per
turn at most one cumulative ack and one cumulative nack leave; what lies behind a publish that is
still open goes out singly, as RabbitMQ does it.

Invariants: every token expected is answered exactly once; a cumulative answer never covers a token
that is still open or answered the other way in the same turn. Tokens answered ahead of an open one
are remembered; a channel routes in order, so they are bounded by what the chain holds in flight.
Not here: when a publish is durable (``engine``), frames (``adapters``).
"""

from typing import NamedTuple

from penstock.model.errors import InvariantBroken


class CumulativeAnswer(NamedTuple):
    """What to tell the peer: everything up to ``upto`` at once, then ``singles``."""

    upto: int | None
    singles: list[int]


class TurnAnswers(NamedTuple):
    """One turn's answers, acks to be sent before nacks."""

    acks: CumulativeAnswer
    nacks: CumulativeAnswer


def cumulative_acks(tokens: list[int], outstanding_min: int) -> CumulativeAnswer:
    """Split answered tokens at the smallest one still open (or one past the last if none is).

    A single token is answered singly: the same bytes, and easier to read on the wire.
    """
    if not tokens:
        return CumulativeAnswer(None, [])
    tokens = sorted(tokens)
    if tokens[-1] < outstanding_min:
        return (
            CumulativeAnswer(tokens[-1], []) if len(tokens) > 1 else CumulativeAnswer(None, tokens)
        )
    below = [token for token in tokens if token < outstanding_min]
    above = tokens[len(below) :]
    if len(below) > 1:
        return CumulativeAnswer(below[-1], above)
    return CumulativeAnswer(None, below + above)


class ConfirmLedger:
    """The open publishes of one channel."""

    __slots__ = ("_ahead", "_low", "_next")

    def __init__(self, first: int = 1) -> None:
        self._next = first
        # Everything below is answered; tokens in _ahead are, too.
        self._low = first
        self._ahead: set[int] = set()

    @property
    def outstanding(self) -> int:
        """Publishes not answered yet."""
        return self._next - self._low - len(self._ahead)

    @property
    def outstanding_min(self) -> int:
        """The smallest open token; one past the last when none is open."""
        return self._low

    def expect(self, n: int = 1) -> int:
        """Publishes came in; the first of their consecutive tokens."""
        first = self._next
        self._next += n
        return first

    def answer_next(self, first: int, last: int) -> bool:
        """The usual outcome: all of these, and they are the next ones; False when they are not.

        Then one cumulative ack of ``last`` says it.
        """
        if first != self._low or self._ahead or last >= self._next:
            return False
        self._low = last + 1
        return True

    def answer(self, confirmed: list[int], refused: list[int]) -> TurnAnswers:
        """One turn's outcome, in any order, as the fewest answers that say it."""
        self._settle(confirmed)
        self._settle(refused)
        ack_below = min([self._low, *refused])
        # Acks leave first, so by the time of the nacks only open tokens can be hit by mistake.
        return TurnAnswers(
            cumulative_acks(confirmed, ack_below), cumulative_acks(refused, self._low)
        )

    def _settle(self, tokens: list[int]) -> None:
        if not tokens:
            return
        tokens = sorted(tokens)
        first, last = tokens[0], tokens[-1]
        if first < self._low or last >= self._next or not self._ahead.isdisjoint(tokens):
            raise InvariantBroken(
                f"publishes {first}..{last} answered, open are {self._low}..{self._next - 1}"
            )
        if first == self._low and last - first + 1 == len(tokens) and not self._ahead:
            self._low = last + 1
            return
        self._ahead.update(tokens)
        while self._low in self._ahead:
            self._ahead.remove(self._low)
            self._low += 1
