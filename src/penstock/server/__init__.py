"""The process around the engine: the only broker code with asyncio, sockets and threads.

Read ``lifecycle.py`` (what starts in which order), then ``turns.py`` (who calls the engine when)
and ``pump.py`` (one connection).
"""
