"""Consumers of the Pulsar client, from SUBSCRIBE to ack."""
