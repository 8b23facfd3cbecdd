"""Groups of clients: who is in them, what they want, and who reads which queue.

All of it is bookkeeping with time passed in: nothing here talks to a peer. What peers must be told
comes back as values (``membership.GroupEvent``).
"""
