"""AMQP peers, tapes and models for tests."""
