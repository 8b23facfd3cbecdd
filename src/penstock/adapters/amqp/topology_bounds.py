"""How much clients may declare: every kind of thing that is kept has a limit with a name (law 2).

A limit that is reached is an error of the channel (406) with the name of the setting; what is there
stays as it is. Queues are counted by the engine, for all protocols (``topics.queues_max``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import encode_table

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House


def check_vhosts(house: House, more: int = 1) -> None:
    """Raise when there may not be so many more."""
    limit = house.settings.vhosts_max
    if more and len(house.vhosts) + more > limit:
        raise _reached(f"there are {limit} vhosts", "vhosts_max")


def check_exchanges(house: House, more: int = 1) -> None:
    """The same for exchanges, those that nobody made included."""
    limit = house.settings.exchanges_max
    if more and sum(len(each.exchanges) for each in house.vhosts.values()) + more > limit:
        raise _reached(f"there are {limit} exchanges", "exchanges_max")


def check_bindings(house: House, more: int = 1) -> None:
    """The same for bindings."""
    limit = house.settings.bindings_max
    if more and sum(each.bindings.count for each in house.vhosts.values()) + more > limit:
        raise _reached(f"there are {limit} bindings", "bindings_max")


def check_arguments(house: House, arguments: dict[str, Any]) -> None:
    """Raise when arguments are too large to be kept."""
    limit = house.settings.arguments_bytes_max
    if arguments and (size := len(encode_table(arguments))) > limit:
        raise _reached(f"arguments of {size} bytes, {limit} are allowed", "arguments_bytes_max")


def _reached(text: str, setting: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, f"{text} (amqp.{setting})")
