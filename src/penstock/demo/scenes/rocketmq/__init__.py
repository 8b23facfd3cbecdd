"""Scenes played by RocketMQ clients, the one of this package among them."""
