"""RocketMQ's remoting protocol: the broker (``session.py``) and the name server."""
