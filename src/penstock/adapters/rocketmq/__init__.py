"""RocketMQ's remoting protocol: the broker (``connection.py``) and the name server."""
