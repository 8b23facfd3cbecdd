"""Where a group's progress is kept: at the broker, in a local file, or in a user's own store.

``table.py`` is what consumers hold: offsets in memory over an ``OffsetStore``.
"""
