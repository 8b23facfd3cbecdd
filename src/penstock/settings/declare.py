"""How a setting is declared: a dataclass field with its meaning beside it.

``setting(default, "what it does")`` is all there is; ``load.py``, ``describe.py`` and the command
line read the metadata to build flags, environment names, ``penstock settings`` and the reference
page. A setting may have a flag of its own; every setting has ``--set part.name=value``.
"""

from dataclasses import field
from typing import Any, Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


def setting(default: Any, doc: str, *, flag: str = "") -> Any:
    """A dataclass field that an operator may set; ``doc`` is shown wherever the setting is."""
    return field(default=default, metadata={"doc": doc, "flag": flag})
