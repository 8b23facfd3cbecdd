"""Write-buffer pool: how much may be appended and not yet durable (F7, D8).

Who spends: an append, its bytes. Who grants: a sync, by making them durable. Who stops: further
appends; by protocol they are then refused (fast) or held (credit). What wakes it: that sync.

RocketMQ borrows whole buffers; here a "buffer" is ``buffer_bytes`` of unsynced log, so the figures
an operator knows (5 buffers of 16 MiB) mean the same without memory being set apart for them.
Invariant: an empty pool takes anything, so a message larger than the whole pool is not stuck.
"""


class BufferPool:
    """Unsynced bytes, counted in buffers."""

    __slots__ = ("buffer_bytes", "buffers", "capacity_bytes", "is_awaited", "unsynced_bytes")

    def __init__(self, buffers: int, buffer_bytes: int) -> None:
        self.unsynced_bytes = 0
        self.is_awaited = False
        """True while something that was taken in waits for room: newcomers would only join it."""
        self.resize(buffers, buffer_bytes)

    def resize(self, buffers: int, buffer_bytes: int) -> None:
        """New figures; what is unsynced stays counted."""
        if buffers < 1 or buffer_bytes < 1:
            raise ValueError(f"{buffers} buffers of {buffer_bytes} bytes: at least 1 of 1 byte")
        self.buffers = buffers
        self.buffer_bytes = buffer_bytes
        self.capacity_bytes = buffers * buffer_bytes

    def appended(self, size_bytes: int) -> None:
        """Written to the log, not durable yet."""
        self.unsynced_bytes += size_bytes

    def durable(self, size_bytes: int) -> None:
        """A sync covered this much (or the append was taken back)."""
        self.unsynced_bytes -= size_bytes
        self.is_awaited = False  # whoever still finds no room says so again
        assert self.unsynced_bytes >= 0, "more bytes synced than appended"

    @property
    def free_buffers(self) -> int:
        """Buffers with nothing unsynced in them."""
        used = -(-self.unsynced_bytes // self.buffer_bytes)
        return max(0, self.buffers - used)

    @property
    def free_bytes(self) -> int:
        """Bytes that still fit."""
        return max(0, self.capacity_bytes - self.unsynced_bytes)

    def can_take(self, size_bytes: int, waiting: int = 0) -> bool:
        """True when that much fits beside what is unsynced and ``waiting`` bytes before it."""
        used = self.unsynced_bytes + waiting
        return used == 0 or used + size_bytes <= self.capacity_bytes
