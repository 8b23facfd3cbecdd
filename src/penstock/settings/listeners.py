"""Settings of listeners: where clients connect. A port is a number, 0 for any free one, or off."""

from dataclasses import dataclass
from typing import Final

from penstock.model.errors import SettingsError
from penstock.settings.declare import KIB, setting

PROTOCOLS: Final = ("rocketmq", "rocketmq_broker", "amqp", "pulsar", "flight", "http")
"""Every listener there is or will be; also the names of the endpoints in the ready file (D21)."""

LOCALHOST: Final = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Addresses, ports and limits of connections."""

    bind: str = setting(
        "localhost", "Address to listen on; localhost = 127.0.0.1 and ::1", flag="--bind"
    )
    insecure: bool = setting(
        False, "Allow an address other than loopback without TLS and users", flag="--insecure"
    )
    rocketmq: str = setting("9876", "RocketMQ name server port, 0 or off", flag="--rocketmq")
    rocketmq_broker: str = setting(
        "10911", "RocketMQ broker port, 0 or off", flag="--rocketmq-broker"
    )
    amqp: str = setting("5672", "AMQP 0-9-1 port, 0 or off", flag="--amqp")
    pulsar: str = setting("6650", "Pulsar port, 0 or off", flag="--pulsar")
    flight: str = setting("8815", "Arrow Flight port, 0 or off", flag="--flight")
    http: str = setting("15672", "HTTP port, 0 or off", flag="--http")
    connections_max: int = setting(10_000, "Connections of all listeners together")
    connections_per_address_max: int = setting(1000, "Connections from one address")
    handshake_ms_max: int = setting(10_000, "A peer must finish its handshake in this time")
    handshake_bytes_max: int = setting(
        16 * KIB, "Bytes read from a peer before its handshake is done"
    )
    http_connections_max: int = setting(
        64, "HTTP connections, kept apart so that they answer in a flood"
    )
    receive_buffer_bytes: int = setting(
        256 * KIB,
        "Kernel buffer of a protocol socket; larger lets unconfirmed publishers run ahead; "
        "0 = the kernel decides",
    )

    def __post_init__(self) -> None:
        for protocol in PROTOCOLS:
            text = getattr(self, protocol)
            if text != "off" and not (text.isdecimal() and int(text) <= 65535):
                raise SettingsError(
                    f"listeners.{protocol} is {text!r}; use a port from 1 to 65535, "
                    "0 for any free one, or off"
                )
        if not self.bind:
            raise SettingsError("listeners.bind is empty; name an address, as localhost")
        if not self.is_loopback and not self.insecure:
            raise SettingsError(
                f"listeners.bind is {self.bind}, which other machines can reach, and there is no "
                "TLS or login yet; add --insecure if that is what you want, or bind localhost"
            )

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect."""
        return all(each == "::1" or each.startswith("127.") for each in self.addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that ``bind`` stands for."""
        return LOCALHOST if self.bind == "localhost" else (self.bind,)

    def port(self, protocol: str) -> int | None:
        """The port of one of ``PROTOCOLS``, 0 for any free one, ``None`` when it is off."""
        text: str = getattr(self, protocol)
        return None if text == "off" else int(text)
