"""The nouns of Penstock and their invariants; imports nothing of ours."""
