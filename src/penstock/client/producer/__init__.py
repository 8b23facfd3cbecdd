"""The producer: checks and encodes on the caller's thread, sends on the client's.

A send's journey: ``producer.py`` (facade) -> ``checking.py`` -> ``encoding.py`` -> ``in_flight.py``
(a permit) -> ``sending.py`` (queue, try, verdict, next try) -> back to whoever waits.
"""
