"""Spark on Penstock: the source, how much it admits per batch, and a session to try it with.

``java.py`` and ``session.py`` start a local Spark; the data source is found by its short name
``penstock`` through ``pyspark_penstock``. Nothing here is imported by the broker.
"""
