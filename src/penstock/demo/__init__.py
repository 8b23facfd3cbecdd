"""``penstock demo``: the whole story, and scenes in which one mechanism acts and checks itself."""
