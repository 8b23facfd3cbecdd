"""Errors of every client of this package, whichever protocol it speaks.

Not here: what one protocol adds (``errors.py``, ``pulsar/errors.py``).
"""

from penstock.model.errors import PenstockError


class ClientError(PenstockError):
    """Root of all errors raised by the client."""


class StateError(ClientError):
    """Something was used in a state in which it cannot be used."""


class Unreachable(ClientError):
    """There is no connection to an address, or it broke."""

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"{address} cannot be reached: {detail}")
        self.address = address


class TimedOut(ClientError):
    """No answer came in time; the request may have been carried out."""

    def __init__(
        self, address: str, timeout_ms: int, what: str = "request", *, detail: str = ""
    ) -> None:
        """``detail`` is what went wrong last."""
        why = f": {detail}" if detail else ""
        super().__init__(f"{what} to {address} was not answered within {timeout_ms} ms{why}")
        self.address = address
        self.timeout_ms = timeout_ms


class WouldBlock(ClientError):
    """A bound of this client is reached; wait for answers and try again."""
