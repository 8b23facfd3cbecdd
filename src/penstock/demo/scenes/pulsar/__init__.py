"""Scenes played by Pulsar clients."""
