"""The public kit for tests: a clock, a disk, an outlet, a running broker and a pytest plugin.

``docs/testing.md`` explains it. What only our own suite needs is in ``tests/kit``.
"""
