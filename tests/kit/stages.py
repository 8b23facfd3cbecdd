"""Stage files made by hand, byte by byte as the Flight process makes them, on any storage.

Not here: Arrow (``penstock.bulk.staging``).
"""

from collections.abc import Iterable, Sequence
from struct import pack

from penstock.log.format import encode, entry_flags
from penstock.log.index import ENTRY_FACTS
from penstock.log.staging import Block, batch_path, encode_block
from penstock.log.storage import Storage
from penstock.model.ids import UNASSIGNED_OFFSET, QueueId
from penstock.model.record import Record, RecordFlag, neutral_record, tag_hash

NO_INDEX = int(RecordFlag.NO_INDEX)
DELAYED = int(RecordFlag.DELAYED)


def block_of(queue_id: int, records: Sequence[Record]) -> Block:
    """A block of these records; they are delayed when the first one has a time."""
    is_delayed = bool(records[0].deliver_ms)
    facts, times, data = b"", b"", b""
    for record in records:
        record.reshape(flags=NO_INDEX | (DELAYED if is_delayed else 0))
        encoded = encode(record, [(QueueId(queue_id), UNASSIGNED_OFFSET)], 0, 0)
        hashed = tag_hash(record.tag) if record.shape.tag_len else 0
        facts += ENTRY_FACTS.pack(len(encoded), 1, hashed, entry_flags(record.shape))
        if is_delayed:
            times += pack("<q", record.deliver_ms)
        data += encoded
    return Block(queue_id, is_delayed, len(records), facts, times, data)


def rows(bodies: Iterable[bytes], **facts: int) -> list[Record]:
    """Neutral records with these bodies."""
    made = [neutral_record(body) for body in bodies]
    for record in made:
        if facts:
            record.reshape(**facts)
    return made


def write_stage(
    storage: Storage, key: tuple[str, str, int], name: str, blocks: Iterable[Block]
) -> str:
    """A durable stage file of (sink, query, batch); its path."""
    directory = batch_path(*key)
    storage.make_dir(directory)
    file = storage.open(f"{directory}/{name}", create=True)
    for block in blocks:
        for piece in encode_block(block):
            if piece:
                assert file.write(piece) == len(piece)
    file.sync()
    file.close()
    parts = directory.split("/")
    for depth in range(len(parts) + 1):
        storage.sync_dir("/".join(parts[:depth]))
    return f"{directory}/{name}"
