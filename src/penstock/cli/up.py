"""``penstock up``: start the broker and run until SIGTERM or Ctrl-C.

Settings are checked before anything is opened; all the rest is ``server/lifecycle.py``.
"""

import os

import click

from penstock.cli.flags import takes_settings
from penstock.settings.load import Settings


@click.command("up", short_help="Start the broker and run until it is told to stop.")
@takes_settings
def command(settings: Settings) -> None:
    """Start the broker; SIGTERM or Ctrl-C stops it cleanly.

    Prints its endpoints and limits once it is ready. Nothing else is needed: the data directory is
    made if it is missing.
    """
    # The server brings asyncio, SQLite and the rest: not before the settings are known to be good.
    from penstock.server.lifecycle import run

    # Messages and password hashes are nobody else's on this machine.
    os.umask(0o077)
    raise SystemExit(run(settings))
