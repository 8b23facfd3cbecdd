"""skeleton: the journey out"""

from penstock.engine.pending import Delivery

__all__ = ["Delivery"]
