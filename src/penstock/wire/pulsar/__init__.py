"""Pulsar's binary protocol as bytes: commands, frames, metadata of messages, batches."""
