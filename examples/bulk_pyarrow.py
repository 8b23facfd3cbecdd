"""Read a topic with pyarrow alone, batch by batch: memory does not grow with the topic.

    python examples/bulk_pyarrow.py [HOST:PORT] [TOPIC]

Needs a broker with its bulk lane (`./penstock up`) and `pip install pyarrow`. Nothing of
Penstock is imported: the lane is plain Arrow Flight.
"""

import json
import sys

from pyarrow import flight

ENDPOINT = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8815"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "orders"
# Without these gRPC buffers more than 100 MB for a reader that is slow.
OPTIONS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20)]


def main() -> None:
    """Count rows and bytes of every queue."""
    with flight.connect(f"grpc://{ENDPOINT}", generic_options=OPTIONS) as client:
        # A filter is evaluated on the broker's side: {"filter": {"kind": "tag", "text": "A || B"}}.
        command = json.dumps({"topic": TOPIC, "columns": ["offset", "body"]})
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        print(f"{TOPIC}: {info.total_records} messages in {len(info.endpoints)} queues")
        for queue, endpoint in enumerate(info.endpoints):
            rows = size = 0
            for chunk in client.do_get(endpoint.ticket):
                rows += chunk.data.num_rows
                size += chunk.data.column("body").nbytes
            print(f"queue {queue}: {rows} rows, {size} bytes of bodies")


if __name__ == "__main__":
    main()
