"""Where a group's progress is kept: at the broker, in a local file, or wherever a user's store puts it.

``table.py`` is what consumers hold: offsets in memory over an ``OffsetStore``.
"""
