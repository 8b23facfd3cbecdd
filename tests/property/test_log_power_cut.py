"""Whatever a power cut takes: synced records come back, unsynced frames wholly or not at all."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.log_maker import LogMaker, recover
from penstock.log.reader import LogReader
from penstock.log.segment import SegmentSet
from penstock.testing.storage import SimulatedStorage

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 900), min_size=1, max_size=4)),
        st.tuples(st.just("sync"), st.none()),
        st.tuples(st.just("mark"), st.none()),
        st.tuples(st.sampled_from(["crash", "kill"]), st.none()),
    ),
    max_size=30,
)


class Life:
    """One log through several lives, and what it must still hold."""

    def __init__(self, seed: int) -> None:
        self.storage = SimulatedStorage(seed)
        self.rng = random.Random(seed)
        self.durable = 0
        self.expected: list[list[tuple[int, int, bytes]]] = []
        self.begin(0, 0)

    def begin(self, end_position: int, prev_head_crc: int) -> None:
        self.maker = LogMaker(
            self.storage,
            segment_bytes_max=2500,
            end_position=end_position,
            prev_head_crc=prev_head_crc,
        )

    def append(self, sizes: list[int]) -> None:
        bodies = [self.rng.randbytes(size) for size in sizes]
        self.expected.append(self.maker.append(*bodies, durable_upto=self.durable))

    def sync(self) -> None:
        taken = self.maker.writer.take_unsynced()
        if taken is not None:
            taken.run()
            self.durable = taken.upto

    def mark(self) -> None:
        self.maker.writer.append_mark(durable_upto=self.durable)

    def end(self, how: str) -> None:
        """Lose power or the process, and recover."""
        self.storage = getattr(self.storage, how)()
        positions, report = recover(self.storage)
        found = set(positions)
        assert len(found) == len(positions)
        survivors = []
        for frame in self.expected:
            present = [made.position in found for made in frame]
            assert all(present) or not any(present), "half a frame came back"
            if frame[0].position < self.durable or how == "kill":
                assert all(present), f"lost {frame[0].position}, synced to {self.durable}"
            if present[0]:
                survivors.append(frame)
        self.expected = survivors
        assert len(found) == sum(map(len, survivors)), "invented a record"
        assert not report.is_damaged, report.sentences()
        assert report.end_position >= self.durable
        # Recovery syncs what it found: from now on all of it counts.
        self.durable = report.end_position
        reader = LogReader(self.storage, SegmentSet.load(self.storage))
        for made in (made for frame in survivors for made in frame):
            assert reader.read(made.position, made.length).origin == made.origin
        self.begin(report.end_position, report.last_head_crc)


@settings(max_examples=150, deadline=None)
@given(script=steps, seed=st.integers(0, 2**32))
def test_synced_records_survive_and_frames_are_atomic(script, seed):
    life = Life(seed)
    for verb, argument in script:
        if verb == "append":
            life.append(argument)
        elif verb in ("crash", "kill"):
            life.end(verb)
        else:
            getattr(life, verb)()
    life.end("crash")
    life.end("crash")
