"""Producing: messages are checked, encoded, admitted into the window, sent, and their ends told.

``producer.py`` (facade, caller's thread) -> ``encoding.py`` -> ``sender.py`` (permit, queue, try,
answer, next try; the client's thread) -> ``send.py`` (back to whoever waits).
"""
