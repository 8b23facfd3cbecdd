"""SQL over a topic with DuckDB, streamed: no queue is held in memory as a whole.

    python examples/bulk_duckdb.py [HOST:PORT] [TOPIC]

Needs a broker with its bulk lane (`./penstock up`) and `pip install pyarrow duckdb`. Nothing of
Penstock is imported: the lane is plain Arrow Flight.
"""

import json
import sys

import duckdb
from pyarrow import flight

ENDPOINT = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8815"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "orders"
# Without these gRPC buffers more than 100 MB for a reader that is slow.
OPTIONS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20)]


def main() -> None:
    """Fill a table queue by queue, then ask it."""
    database = duckdb.connect()
    with flight.connect(f"grpc://{ENDPOINT}", generic_options=OPTIONS) as client:
        columns = ["queue", "offset", "timestamp", "key", "tag", "body"]
        command = json.dumps({"topic": TOPIC, "columns": columns})
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        for number, endpoint in enumerate(info.endpoints):
            database.register("rows", client.do_get(endpoint.ticket).to_reader())
            verb = "INSERT INTO messages" if number else "CREATE TABLE messages AS"
            database.execute(f"{verb} SELECT * FROM rows")
    print(
        database.sql(
            "SELECT tag, count(*) AS messages, sum(octet_length(body)) AS bytes"
            " FROM messages GROUP BY tag ORDER BY tag"
        )
    )
    print(f"{database.sql('SELECT count(*) FROM messages').fetchall()[0][0]} rows")


if __name__ == "__main__":
    main()
