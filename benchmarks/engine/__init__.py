"""Benchmarks that need no client: each file measures one figure of ``benchmarks/README.md``."""
