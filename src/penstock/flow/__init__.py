"""Flow control, one small pure file per mechanism (F1-F16), and the diagnosis that reads them.

Every module opens with who grants, who spends, who stops and what wakes it. Nothing here reads a
clock, owns a socket or knows a protocol: time comes in as monotonic milliseconds, and what goes out
is a number, a value or a call of a ``wake`` function that only marks its owner as having work.

The publish chain, in order: ``gate`` (F2), ``credit`` between ``stage``s (F1), ``alarm`` on
``watermark`` (F3), ``confirms`` (F4), ``fast_fail`` (F5), ``store_busy`` (F6), ``buffer_pool``
(F7), ``rate`` and ``quota`` (F8), ``pending`` (F9). The delivery chain: ``demand`` as ``prefetch``
(F10), ``permits`` (F11) or ``held_pull`` (F12), then ``inflight`` (F13) and ``unsent`` (F14). One
``pool`` pays for all of it (D22). What an operator sees: ``episodes``, ``journal``, ``diagnosis``.

A client's own: ``thresholds`` of a consumer (F15), ``send_window`` of a producer (F16).

Not here: Spark (F17, F18).
"""
