"""Scenes played by AMQP clients."""
