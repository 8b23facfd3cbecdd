"""What an operator may set, declared once; flags, environment, help and reference derive from it.

One file per part (``storage flow topics listeners broker``), ``load`` puts them together,
``describe`` prints them. ``penstock.settings.Settings`` is the whole.
"""

from penstock.settings.load import Given, Settings, load_settings

__all__ = ["Given", "Settings", "load_settings"]
