"""The ready file (D21): pid and endpoints as JSON, there only while every listener accepts.

``<data>/ready.json`` is always written, ``--ready-file`` names a second place. Written under
another name and moved over, so that whoever finds it finds all of it; removed at a clean stop, and
at the next start if a crash left it behind.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.model.errors import NotFound, StartRefused

NAME: Final = "ready.json"


class Ready(NamedTuple):
    """A running broker as others find it."""

    pid: int
    endpoints: dict[str, str]


def write_ready(path: Path, endpoints: dict[str, str]) -> None:
    content: dict[str, Any] = {"pid": os.getpid(), "endpoints": endpoints}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(content) + "\n")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise StartRefused(
            f"ready file {path} cannot be written: {error.strerror}; make its directory, "
            "or use --ready-file with another path"
        ) from None


def remove_ready(path: Path) -> None:
    """Tell others that it is over; a file that is not there is fine."""
    with contextlib.suppress(OSError):
        path.unlink()


def find_ready(data: Path, flag: str = "--endpoint") -> Ready:
    """The broker that runs on a data directory; ``NotFound`` when none is ready there.

    ``flag`` is how the caller can be told where it is instead.
    """
    try:
        content = json.loads((data / NAME).read_text())
        return Ready(int(content["pid"]), dict(content["endpoints"]))
    except FileNotFoundError:
        raise NotFound(
            f"no broker is ready on {data}; start one with `penstock up --data {data}`, "
            f"or give {flag}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotFound(f"{data / NAME} cannot be read ({error}); give {flag}") from None
