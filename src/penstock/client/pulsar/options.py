"""Options of the Pulsar client and its consumers; declared as ``client/options.py`` says.

Not here: options of producers (beside theirs), what an option does (the room that reads
it).
"""

from typing import Annotated, TypedDict

from penstock.client.options import Option
from penstock.client.pulsar.backoff import INITIAL_MS, MAX_MS


class ClientOptions(TypedDict, total=False):
    """Options of a ``Client``."""

    operation_timeout_ms: Annotated[
        int, Option(30_000, "How long a request, or opening something, may take.", 1)
    ]
    connection_timeout_ms: Annotated[int, Option(10_000, "How long connecting may take.", 1)]
    keep_alive_interval_ms: Annotated[
        int, Option(30_000, "How often a PING goes out; two without any answer end it.", 10)
    ]
    backoff_initial_ms: Annotated[
        int, Option(INITIAL_MS, "Wait after the first failure; it doubles.", 1)
    ]
    backoff_max_ms: Annotated[int, Option(MAX_MS, "Longest wait between two attempts.", 1)]
    token: Annotated[str | None, Option(None, "A JSON web token to say who this is.")]
    listener_name: Annotated[
        str | None, Option(None, "Which of a broker's advertised addresses to use.")
    ]
    concurrent_lookups_max: Annotated[
        int, Option(1_000, "Look-ups under way; more of them wait.", 1)
    ]
    unsent_bytes_max: Annotated[
        int, Option(128 * 1024 * 1024, "Bytes not yet taken by one connection's socket.", 1)
    ]
