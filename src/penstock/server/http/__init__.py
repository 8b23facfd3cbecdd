"""What the broker answers over HTTP: health, metrics, the flow map and, if allowed, faults."""
