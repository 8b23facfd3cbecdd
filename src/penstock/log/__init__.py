"""The one storage log: frames, records, indexes, catalog, recovery. Start at ``store.py``."""
