"""A named reader of a topic: its cursors, its consumers, who is next, and what became of it."""
