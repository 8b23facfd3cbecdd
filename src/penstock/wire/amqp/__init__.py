"""AMQP 0-9-1 as bytes: frames, tables, methods, contents, stored messages; both ways, pure."""
