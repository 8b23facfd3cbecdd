"""Penstock: one broker for RabbitMQ, RocketMQ and Pulsar clients, with flow control end to end.

Start reading at ``engine/publish.py`` (a message's way in) and
``engine/subscription/dispatch.py`` (its way out).
"""

__version__ = "0.1.0"
