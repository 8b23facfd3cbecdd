"""Settings of listeners: where clients connect. A port is a number, 0 for any free one, or off."""

from dataclasses import dataclass

from penstock.settings.declare import KIB, setting


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Addresses, ports and limits of connections."""

    bind: str = setting("localhost", "Address to listen on; localhost = 127.0.0.1 and ::1 (D21)")
    insecure: bool = setting(False, "Allow an address other than loopback without TLS and users")
    rocketmq: str = setting("9876", "RocketMQ name server port, 0 or off")
    rocketmq_broker: str = setting("10911", "RocketMQ broker port, 0 or off")
    amqp: str = setting("5672", "AMQP 0-9-1 port, 0 or off")
    pulsar: str = setting("6650", "Pulsar port, 0 or off")
    flight: str = setting("8815", "Arrow Flight port, 0 or off")
    http: str = setting("15672", "HTTP port, 0 or off")
    connections_max: int = setting(10_000, "Connections of all listeners together")
    connections_per_address_max: int = setting(1000, "Connections from one address")
    handshake_ms_max: int = setting(10_000, "A peer must finish its handshake in this time")
    handshake_bytes_max: int = setting(
        16 * KIB, "Bytes read from a peer before its handshake is done"
    )
    http_connections_max: int = setting(
        64, "HTTP connections, kept apart so that they answer in a flood"
    )
