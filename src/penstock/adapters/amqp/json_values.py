"""Field values as JSON has them, for the management API.

Text that is no UTF-8 loses what is not, bytes become text the same way, decimals become numbers;
everything else is JSON's own. The way back needs nothing: every JSON value is a field value.
"""

from decimal import Decimal
from typing import Any

import msgspec

from penstock.wire.amqp.properties import Properties
from penstock.wire.amqp.table import Timestamp


def plain(value: Any) -> Any:
    """A field value in JSON's types."""
    if isinstance(value, dict):
        return {plain(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (str, bytes)):
        raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "replace")
    if isinstance(value, Decimal):
        return float(value)
    return int(value) if type(value) is Timestamp else value


def plain_properties(properties: Properties) -> dict[str, Any]:
    """Those basic properties that are there."""
    found = msgspec.structs.asdict(properties)
    return {name: plain(value) for name, value in found.items() if value is not None}
