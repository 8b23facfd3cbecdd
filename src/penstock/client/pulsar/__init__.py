"""A Pulsar client in pure Python, for Penstock and for Apache Pulsar."""
