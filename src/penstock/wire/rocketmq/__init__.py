"""RocketMQ's remoting protocol as bytes: frames, headers, bodies, stored messages; both ways."""
