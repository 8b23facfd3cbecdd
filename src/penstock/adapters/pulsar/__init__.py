"""Pulsar's binary protocol: connections, producers, consumers, and the rules of their topics."""
