"""Route, append, dispatch: deterministic, no event loop, no thread, no clock of its own."""
