"""Pulsar's REST API: ``/admin/v2`` and ``/lookup/v2`` as its clients and its tool use them."""
