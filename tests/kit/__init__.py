"""Penstock's own test kit: the simulator, models, peers, tapes, and launchers of other brokers."""
