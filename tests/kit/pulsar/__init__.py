"""Pulsar's part of the kit."""
