"""Who gets the next message: one file per subscription mode."""
