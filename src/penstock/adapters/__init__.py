"""One protocol each, sans-IO: bytes in, engine verbs out, bytes back. Start at ``contract.py``."""
