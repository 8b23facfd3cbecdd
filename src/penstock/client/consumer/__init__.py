"""Consumers of the RocketMQ model: push, pull and lite pull.

Read ``push_consumer.py`` first, then ``push_member.py``, which puts the parts together: rebalancing
(``rebalance.py``), pulls (``pulling.py``, ``pop.py``), the cache (``process_queue.py``), listeners
(``executor.py``) and what follows from their results (``concurrent.py``, ``ordered.py``).
"""
