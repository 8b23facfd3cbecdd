"""The bulk lane: row ranges of the log as Arrow, by a process of its own (D18)."""
