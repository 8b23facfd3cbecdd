"""The protocols a broker speaks: which adapter listens on which port.

Adding a protocol is one line in ``built_in``: its factory and the setting of its port. Ports of
protocols that are not built yet have settings already; they are simply not in the list.
"""

from typing import NamedTuple

from penstock.adapters.contract import AdapterFactory
from penstock.settings.listeners import ListenerSettings


class Listening(NamedTuple):
    """A protocol and its port; 0 = any free one."""

    factory: AdapterFactory
    port: int


def built_in(settings: ListenerSettings) -> list[Listening]:
    """Every protocol that is built and not switched off."""
    del settings  # the first protocol reads its port from here
    return []
