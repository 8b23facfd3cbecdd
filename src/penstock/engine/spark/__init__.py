"""Spark queries in the engine: positions, long polls, leases, back-pressure (D18, F12, F18).

``query_service.py`` takes the requests. A query is a subscription ``spark/<name>`` on each topic
it reads, without consumers: it names its offsets itself, and the rows are read by another process
(``penstock.bulk``) from the files. Nothing here touches a message.
"""
