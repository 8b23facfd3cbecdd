"""Settings of flow control: every limit of F1-F14 with its default (flow-control.md section 1)."""

from dataclasses import dataclass

from penstock.model.errors import SettingsError
from penstock.settings.declare import MIB, parse_bytes, setting


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Credits, alarms, pools and limits."""

    # Above 1,000, a usual window of confirms: with RabbitMQ's 400 a socket is stopped and started
    # for every list. Stages here are not processes: more credit makes longer lists, not delays.
    reader_channel_credit: int = setting(
        1200, "F1: messages a connection may be ahead of its channel"
    )
    reader_channel_more: int = setting(100, "F1: credit given back at a time on that hop")
    # As much as a turn takes from a channel: one that fills its turns is held by its queue.
    channel_queue_credit: int = setting(600, "F1: messages a channel may be ahead of a queue")
    channel_queue_more: int = setting(50, "F1: credit given back at a time on that hop")
    queue_log_credit: int = setting(4000, "F1: messages a queue may be ahead of the log's sync")
    queue_log_more: int = setting(800, "F1: credit given back at a time on that hop")
    connection_bytes_max: int = setting(16 * MIB, "F1: undigested publish bytes of one connection")
    inflight_bytes_max: int = setting(
        256 * MIB,
        "D22: one pool that pays for everything in flight; a quarter of it is for deliveries that "
        "sockets have not taken",
    )
    memory_limit: str = setting(
        "0.6",
        "F3: memory alarm, a share of RAM or bytes (as 2GiB); 0 blocks at once",
        flag="--memory-limit",
    )
    memory_low_ratio: float = setting(
        0.95, "F3: the memory alarm clears below this share of its limit"
    )
    disk_free_limit: str = setting(
        "auto",
        "F3: disk alarm, bytes free (as 1GiB); auto = min(5 %, 1 GiB)",
        flag="--disk-free-limit",
    )
    disk_high_ratio: float = setting(
        1.1, "F3: the disk alarm clears above this multiple of its limit"
    )
    alarm_check_ms: int = setting(500, "F3: how often memory and disk are looked at")
    alarm_hold_ms_max: int = setting(
        0, "D23: longest hold under an alarm; 0 = no end, as RabbitMQ does"
    )
    store_busy_ms: int = setting(1000, "F6: a commit running longer than this refuses new sends")
    fast_fail_sweep_ms: int = setting(10, "F5: how often waiting requests are looked at")
    hold_ms_max: int = setting(20_000, "D23: longest time a publish is held before it is refused")
    pending_publishes_max: int = setting(
        1000, "F9: unconfirmed publishes of one connection; resumes at half"
    )
    unacked_consumer_max: int = setting(
        50_000, "F13: unacked messages of one consumer; resumes at half"
    )
    unacked_subscription_max: int = setting(200_000, "F13: unacked messages of one subscription")
    unacked_consumer_bytes_max: int = setting(64 * MIB, "F13: unacked bytes of one consumer")
    # More than a turn takes from one publisher: sockets are written to between turns, and with
    # RabbitMQ's 200 a backlog grows although its only consumer reads as fast as it can.
    unsent_messages_max: int = setting(
        1200, "F14: deliveries a socket has not taken yet, by number"
    )
    unsent_bytes_max: int = setting(1 * MIB, "F14: deliveries a socket has not taken yet, by bytes")
    turn_messages_max: int = setting(2000, "Messages one turn moves through one stage")
    # Half a window of 1,000, with some to spare: one half is stored while the other is synced.
    turn_channel_messages_max: int = setting(600, "Messages one turn takes from one channel")
    turn_bytes_max: int = setting(16 * MIB, "Bytes one turn appends")
    stall_window_ms: int = setting(
        10_000, "Window over which the share of stalled time is reported"
    )
    events_topic: bool = setting(
        True, "Append the edges of flow episodes to the system topic penstock.flow"
    )
    behind_ms: int = setting(
        5000, "A reader is behind whose oldest message is older than this, and gets older"
    )
    stall_memory_ms: int = setting(1000, "A stage still reports flow this long after it was held")

    def __post_init__(self) -> None:
        for hop in ("reader_channel", "channel_queue", "queue_log"):
            credit, more = getattr(self, f"{hop}_credit"), getattr(self, f"{hop}_more")
            if not 0 < more <= credit:
                raise SettingsError(
                    f"flow.{hop}_more is {more} and flow.{hop}_credit is {credit}; "
                    "more must be between 1 and credit"
                )
        if self.connection_bytes_max > self.inflight_bytes_max:
            raise SettingsError(
                "flow.connection_bytes_max is a share of flow.inflight_bytes_max (D22); "
                "it cannot be larger"
            )
        if not _is_share_or_bytes(self.memory_limit):
            raise SettingsError(
                f"flow.memory_limit is {self.memory_limit!r}; use a share of RAM from 0 to 1, as "
                "0.6, or bytes, as 2GiB"
            )
        if self.disk_free_limit != "auto" and not _is_share_or_bytes(self.disk_free_limit):
            raise SettingsError(
                f"flow.disk_free_limit is {self.disk_free_limit!r}; use auto, a share of the disk "
                "from 0 to 1, or bytes, as 1GiB"
            )
        if not 0 < self.memory_low_ratio <= 1 <= self.disk_high_ratio:
            raise SettingsError(
                f"flow.memory_low_ratio is {self.memory_low_ratio} and flow.disk_high_ratio is "
                f"{self.disk_high_ratio}; the first must be from 0 to 1, the second 1 or more"
            )


def _is_share_or_bytes(text: str) -> bool:
    try:
        amount = parse_bytes(text)
    except ValueError:
        return False
    # "1.5" would be neither a share nor a whole number of bytes.
    return not _is_fraction(text) or (amount <= 1 and 0 <= float(text) <= 1)


def _is_fraction(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal() and "." in text
