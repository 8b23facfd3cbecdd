"""Whether a broker takes work, in the form ``/readyz`` answers."""

import msgspec


class Readiness(msgspec.Struct, frozen=True):
    """Whether the broker takes work, and why not."""

    is_ready: bool
    state: str
    """``starting``, ``running``, ``stopping`` or ``failed``."""
    alarms: list[str] = []
    """Raised alarms: publishers wait, all else goes on, so the broker is still ready."""
    amber: list[str] = []
    """Promises weakened by choice, as a durability other than fsync (P3)."""
