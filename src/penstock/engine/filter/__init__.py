"""Which messages a reader wants: by tag, by an SQL92 selector, and a bit map that asks earlier.

Every filter answers ``filters.Filter``. None of them reads origin bytes: the tag is a
span of the record, properties come through a reader that the owner of the bytes supplies (D15).
"""
