"""Measurements: the core alone (``engine``), with clients (``macro``), one function (``micro``)."""
