"""Flows from a file: topics through Spark into topics, Parquet and Delta (``penstock pipeline``).

``flow_file.py`` reads the file, ``state.py`` knows what a flow has done, ``query.py`` makes
Spark's query of it, ``runner.py`` keeps the queries running, ``launch.py`` puts a run together.
``table.py`` and ``table_sink.py`` write tables that any reader sees exactly once, ``letters.py``
says what becomes of rows that cannot be processed, ``archive_source.py`` reads an archive back.

What needs no Spark imports none: files are checked, tables compacted and states looked at without.
"""
