"""HTTP: health, metrics and the flow map; the management API will live here, too.

Imported only after the protocol ports are open: the HTTP stack is the dearest import of the broker.
"""
