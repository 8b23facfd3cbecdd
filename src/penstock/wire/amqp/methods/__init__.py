"""Every method of the protocol, read by its ids.

    byte  0          2           4
          | class u16 | method u16 | arguments |

Invariants: ``decode_method(m.encode())`` is ``m``; missing bytes are refused, and so are bytes too
many. Every failure is an ``AmqpError`` that names class, method and channel.
Not here: how arguments are laid out (``method.py``).
"""

from struct import error
from typing import Any

from penstock.wire.amqp.codes import AmqpError, ReplyCode, frame_error
from penstock.wire.amqp.methods import basic as basic_methods
from penstock.wire.amqp.methods import channel as channel_methods
from penstock.wire.amqp.methods import connection as connection_methods
from penstock.wire.amqp.methods import exchange as exchange_methods
from penstock.wire.amqp.methods import queue as queue_methods
from penstock.wire.amqp.methods.method import IDS, METHODS, Method

__all__ = [
    "basic_methods",
    "channel_methods",
    "connection_methods",
    "decode_method",
    "exchange_methods",
    "queue_methods",
]


def decode_method(payload: bytes, channel: int = 0) -> Method:
    """The method in the payload of a method frame."""
    if len(payload) < 4:
        raise frame_error(f"method frame of {len(payload)} bytes").about(channel)
    class_id, method_id = IDS.unpack_from(payload)
    kind = METHODS.get((class_id, method_id))
    if kind is None:
        text = f"unknown method, class {class_id} method {method_id}"
        raise AmqpError(ReplyCode.COMMAND_INVALID, text).about(channel, class_id, method_id)
    values: list[Any] = []
    at = 4
    try:
        for step in kind.steps:
            found, at = step.read(payload, at)
            values += found
        if at != len(payload):
            raise frame_error(f"{kind.__name__} with {len(payload) - at} bytes too many")
    except (error, IndexError):
        problem = frame_error(f"{kind.__name__} ends within its arguments")
        raise problem.about(channel, class_id, method_id) from None
    except AmqpError as problem:
        raise problem.about(channel, class_id, method_id) from None
    return kind(*values)
