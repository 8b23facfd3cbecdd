"""How much clients may declare: everything that is kept has a limit with a name (law 2).

A limit that is reached is an error of the channel (406) with the name of the setting; what is
there stays as it is. Limits hold for all vhosts together.
Not here: queues, which the engine counts for all protocols (``topics.queues_max``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import encode_table

if TYPE_CHECKING:
    from penstock.settings.protocols import AmqpSettings


class CountedVhost(Protocol):
    """What is counted of a virtual host."""

    @property
    def exchange_count(self) -> int: ...

    @property
    def binding_count(self) -> int: ...

    @property
    def policy_count(self) -> int: ...


class TopologyLimits:
    """The limits of one broker, and what its vhosts have used of them."""

    def __init__(self, settings: AmqpSettings, vhosts: Mapping[str, CountedVhost]) -> None:
        self._settings: Final = settings
        self._vhosts: Final = vhosts

    def check_vhosts(self, more: int = 1) -> None:
        """Raise when there may not be so many more."""
        limit = self._settings.vhosts_max
        if more and len(self._vhosts) + more > limit:
            raise _reached(f"there are {limit} vhosts", "vhosts_max")

    def check_exchanges(self, more: int = 1) -> None:
        """The same for exchanges, the predeclared ones included."""
        limit = self._settings.exchanges_max
        if more and sum(each.exchange_count for each in self._vhosts.values()) + more > limit:
            raise _reached(f"there are {limit} exchanges", "exchanges_max")

    def check_bindings(self, more: int = 1) -> None:
        limit = self._settings.bindings_max
        if more and sum(each.binding_count for each in self._vhosts.values()) + more > limit:
            raise _reached(f"there are {limit} bindings", "bindings_max")

    def check_policies(self, more: int = 1) -> None:
        """The same for policies, those of operators included."""
        limit = self._settings.policies_max
        if more and sum(each.policy_count for each in self._vhosts.values()) + more > limit:
            raise _reached(f"there are {limit} policies", "policies_max")

    @property
    def arguments_bytes_max(self) -> int:
        return self._settings.arguments_bytes_max

    def check_arguments(self, arguments: dict[str, Any]) -> None:
        """Raise when arguments are too large to be kept."""
        limit = self._settings.arguments_bytes_max
        if arguments and (size := len(encode_table(arguments))) > limit:
            raise _reached(f"arguments of {size} bytes, {limit} are allowed", "arguments_bytes_max")


def _reached(text: str, setting: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, f"{text} (amqp.{setting})")
