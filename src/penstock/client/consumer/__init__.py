"""Consumers: the push consumer and its parts, the pull consumers, rebalancing.

Start at ``push_consumer.py``. The parts meet in ``assigned.py``; answers of listeners are in
``results.py``.
"""
