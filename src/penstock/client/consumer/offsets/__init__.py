"""Where a group's progress is kept: at the broker, in a local file, or in a store of the user's own.

``table.py`` is what consumers hold: offsets in memory over an ``OffsetStore``.
"""
