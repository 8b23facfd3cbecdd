"""Send a message if, and only if, a local transaction commits.

    python examples/transaction.py [NAME_SERVER] [TOPIC]

The broker stores a half message that nobody sees, then the local transaction runs, then its outcome
is told. When the outcome is lost (a crash, a network that breaks) the broker asks ``check`` for it.
"""

import sqlite3
import sys

from penstock.client import Message, Producer, ReceivedMessage, TransactionState

NAME_SERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "payments"

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, euros INTEGER CHECK (euros >= 0))")
database.execute("CREATE TABLE payments (id TEXT PRIMARY KEY)")
database.execute("INSERT INTO accounts VALUES ('ann', 100)")


def pay(message: Message) -> TransactionState:
    """The local transaction; its outcome decides whether the message is ever seen."""
    try:
        with database:
            euros = int(message.properties["euros"])
            database.execute("UPDATE accounts SET euros = euros - ? WHERE name = 'ann'", [euros])
            database.execute("INSERT INTO payments VALUES (?)", [message.keys[0]])
    except sqlite3.IntegrityError:
        return TransactionState.ROLLBACK
    return TransactionState.COMMIT


def check(message: ReceivedMessage) -> TransactionState:
    """The broker asks what became of it: look it up where the truth is."""
    known = database.execute("SELECT 1 FROM payments WHERE id = ?", [message.keys[0]]).fetchone()
    return TransactionState.COMMIT if known else TransactionState.ROLLBACK


def main() -> None:
    """Two payments that Ann can afford, and one that she cannot."""
    with Producer(NAME_SERVER, "example-payers", transaction_check=check) as producer:
        for number, euros in enumerate([40, 50, 60]):
            message = Message(
                TOPIC,
                f"ann pays {euros}".encode(),
                keys=f"payment-{number}",
                properties={"euros": str(euros)},
            )
            result = producer.send_in_transaction(message, pay)
            print(f"ann pays {euros}: {result.state.name}", flush=True)


if __name__ == "__main__":
    main()
