"""Hostile bytes for a reader (T11, T12): good ones with a few mistakes, and quite random ones."""

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Callable, Sequence


def dearest_read(
    reader: Callable[[bytes], object],
    seed: bytes,
    chance_seed: str,
    *,
    count: int,
    bytes_in: Sequence[int],
    lengths: Sequence[int],
    refusals: tuple[type[Exception], ...],
    insert: bytes = b"",
) -> int:
    """The most memory one of ``count`` inputs cost; what is not a refusal of ``refusals`` raises.

    ``bytes_in`` and ``lengths`` are bytes and 32-bit numbers worth trying in this format, and
    ``insert`` is something of which beginnings are put in.
    """
    reader(seed)
    chance = random.Random(chance_seed)
    dearest = 0
    tracemalloc.start()
    try:
        for number in range(count):
            if number % 4:
                data = mutated(seed, chance, bytes_in, lengths, insert)
            else:
                data = chance.randbytes(chance.randint(0, 200))
            # Input by input: brokers of other tests live in this process and allocate meanwhile.
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with contextlib.suppress(*refusals):
                reader(data)
            dearest = max(dearest, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return dearest


def mutated(
    seed: bytes,
    chance: random.Random,
    bytes_in: Sequence[int],
    lengths: Sequence[int],
    insert: bytes = b"",
) -> bytes:
    """``seed`` with one to four mistakes."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(7 if insert else 6)
        if kind == 0 and at < len(data):
            data[at] = chance.choice(bytes_in)
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            data[at : at + 4] = struct.pack(">I", chance.choice(lengths))
        elif kind == 3:
            del data[at : at + chance.randint(1, 20)]
        elif kind == 4:
            data[at:at] = data[: chance.randint(0, 40)]
        elif kind == 6:
            data[at:at] = insert[: chance.randint(1, len(insert))]
        else:
            data[at:at] = chance.randbytes(chance.randint(1, 12))
    return bytes(data)
