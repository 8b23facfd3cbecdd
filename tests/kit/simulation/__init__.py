"""The parts of the scenario simulator: world, peers, steps, laws, and what must be remembered."""
