"""The ``penstock`` command: one file per verb, each with a ``register(app)`` function."""
