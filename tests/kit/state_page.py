"""docs/internals/amqp-states.md, drawn from the tables of ``adapters/amqp/states.py``.

.venv/bin/python -m kit.state_page        writes the page anew
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from penstock.adapters.amqp.states import (
    CHANNEL_TRANSITIONS,
    CONNECTION_TRANSITIONS,
    ChannelState,
    ConnectionState,
)

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "amqp-states.md"

HEAD = """# States of an AMQP connection and of a channel

Drawn from the tables in `src/penstock/adapters/amqp/states.py` by `python -m kit.state_page`; a
test keeps both in step. What is not in a table is an error of the peer, with two exceptions: an
open channel hands every other method to its handler, and a channel that is `CLOSING` or `ENDING`
throws away what its client sent before it knew.
"""


S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)


def diagram(transitions: Mapping[tuple[S, T], S], start: S, end: S | None = None) -> str:
    """A Mermaid state diagram: one arrow from state to state, labelled with all its inputs."""
    labels: dict[tuple[str, str], list[str]] = {}
    for (state, received), target in transitions.items():
        labels.setdefault((state.name, target.name), []).append(received.value)
    arrows = [f"    {source} --> {to}: {' / '.join(each)}" for (source, to), each in labels.items()]
    ends = [] if end is None else [f"    {end.name} --> [*]"]
    lines = ["stateDiagram-v2", f"    [*] --> {start.name}", *arrows, *ends]
    return "\n".join(["```mermaid", *lines, "```"])


def page() -> str:
    parts = (
        HEAD,
        "## Connection\n",
        diagram(CONNECTION_TRANSITIONS, ConnectionState.AWAIT_HEADER, ConnectionState.CLOSED),
        "\n## Channel\n",
        diagram(CHANNEL_TRANSITIONS, ChannelState.FREE),
    )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
