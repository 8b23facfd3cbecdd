"""A topic as a Polars DataFrame: what the messages weigh, by tag.

    python examples/bulk_polars.py [HOST:PORT] [TOPIC]

Needs a broker with its bulk lane (`./penstock up`) and `pip install pyarrow polars`. Nothing of
Penstock is imported: the lane is plain Arrow Flight.
"""

import json
import sys

import polars as pl
import pyarrow as pa
from pyarrow import flight

ENDPOINT = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8815"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "orders"
# Without these gRPC buffers more than 100 MB for a reader that is slow.
OPTIONS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20)]


def main() -> None:
    """Group what is in the topic now."""
    with flight.connect(f"grpc://{ENDPOINT}", generic_options=OPTIONS) as client:
        command = json.dumps({"topic": TOPIC, "columns": ["queue", "offset", "tag", "body"]})
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        parts = [client.do_get(each.ticket).read_all() for each in info.endpoints]
    frame = pl.DataFrame(pl.from_arrow(pa.concat_tables(parts)))
    size = pl.col("body").bin.size().alias("bytes")
    print(frame.group_by("tag").agg(pl.len().alias("messages"), size.sum()).sort("tag"))
    print(f"{frame.height} rows")


if __name__ == "__main__":
    main()
