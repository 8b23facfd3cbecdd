"""Bytes <-> typed commands of each protocol, pure; nothing here knows the engine."""
