"""Pop: the broker hands out messages of shared queues, each for a limited time."""
