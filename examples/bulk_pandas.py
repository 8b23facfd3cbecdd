"""A topic as a pandas DataFrame: messages by tag and minute.

    python examples/bulk_pandas.py [HOST:PORT] [TOPIC]

Needs a broker with its bulk lane (`./penstock up`) and `pip install pyarrow 'pandas<3'`. Nothing of
Penstock is imported: the lane is plain Arrow Flight.
"""

import json
import sys

import pandas as pd
from pyarrow import flight

ENDPOINT = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8815"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "orders"
# Without these gRPC buffers more than 100 MB for a reader that is slow.
OPTIONS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20)]


def main() -> None:
    """Group what is in the topic now."""
    with flight.connect(f"grpc://{ENDPOINT}", generic_options=OPTIONS) as client:
        command = json.dumps({"topic": TOPIC, "columns": ["timestamp", "tag", "body"]})
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        parts = [client.do_get(each.ticket).read_pandas() for each in info.endpoints]
    frame = pd.concat(parts, ignore_index=True)
    frame["size"] = frame["body"].str.len()
    minute = frame["timestamp"].dt.floor("min").rename("minute")
    print(frame.groupby([minute, frame["tag"].fillna("-")])["size"].agg(["count", "sum"]))
    print(f"{len(frame)} rows")


if __name__ == "__main__":
    main()
