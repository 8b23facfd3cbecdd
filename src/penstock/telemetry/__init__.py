"""Statistics of the engine turned into what observers read: metrics, the flow map, events, logs."""
