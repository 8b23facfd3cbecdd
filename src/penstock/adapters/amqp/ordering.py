"""Commands that look into queues come after what their connection published before them.

RabbitMQ handles both in order. Here a publish reaches its queues in the engine's next turn, so a
command that counts or drops messages asks for that turn first. What is held, by an alarm or a full
queue, is not waited for; neither is more than a few turns' worth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState

TURNS_MAX: Final = 8
"""Turns one command may ask for."""


def is_publishing(channel: ChannelState) -> bool:
    """True while publishes of this connection wait for their turn, and nothing holds them."""
    channels = channel.session.connection.channels.values()
    return any(each.inbox_messages and each.hold is None for each in channels)


def catch_up(channel: ChannelState) -> bool:
    """Let earlier publishes of this connection arrive; False when that closed the channel."""
    for _ in range(TURNS_MAX):
        if not is_publishing(channel):
            break
        channel.house.engine.turn()
    return channel.is_open
