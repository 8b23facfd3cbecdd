"""Unsent limit: deliveries made for a connection that its socket has not taken yet (F14).

Who spends: the dispatcher. Who grants: the socket, by taking bytes. Who stops: deliveries to this
connection only; a peer that does not read never slows another one. What wakes it: both figures back
at half (RabbitMQ gives back 50 of 200 at a time for the same reason).

Not here: whether the peer settles what it was sent (``inflight``).
"""


class UnsentLimit:
    """Messages or bytes, whichever is reached first; 0 = no ceiling."""

    __slots__ = ("bytes", "bytes_max", "is_held", "messages", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        self.is_held = False

    def queued(self, messages: int, size_bytes: int) -> bool:
        """Handed to the connection; True while held."""
        self.messages += messages
        self.bytes += size_bytes
        if self.messages >= self.messages_max > 0 or self.bytes >= self.bytes_max > 0:
            self.is_held = True
        return self.is_held

    def sent(self, messages: int, size_bytes: int) -> bool:
        """Taken by the socket; True when this let deliveries go on."""
        self.messages -= messages
        self.bytes -= size_bytes
        assert self.messages >= 0, "more messages sent than queued"
        assert self.bytes >= 0, "more bytes sent than queued"
        if not self.is_held:
            return False
        # Without a ceiling a figure never holds anything back, however large it is.
        is_low = (not self.messages_max or self.messages <= self.messages_max // 2) and (
            not self.bytes_max or self.bytes <= self.bytes_max // 2
        )
        self.is_held = not is_low
        return is_low

    def sent_all(self) -> bool:
        """The socket has nothing left to take; True when this let deliveries go on."""
        return self.sent(self.messages, self.bytes)
