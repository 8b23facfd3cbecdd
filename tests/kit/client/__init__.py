"""The client's parts without a network."""
