"""A broker that speaks only the line protocol, as a process of its own, made to be killed.

    python -m kit.line_broker --data DIR --ready-file FILE

Takes the flags of ``penstock up``; the ready file names the ``line`` endpoint.
"""

import sys
from typing import Final

import click

from kit.line_protocol import LineFactory
from penstock.cli.flags import takes_settings
from penstock.cli.main import exit_code
from penstock.model.errors import PenstockError
from penstock.server.lifecycle import run
from penstock.server.protocols import ProtocolBinding
from penstock.settings.load import Settings

LINE_BROKER: Final = (sys.executable, "-m", "kit.line_broker", "--http", "off")
"""The command of a ``BrokerProcess``."""


@click.command()
@takes_settings
def command(settings: Settings) -> None:
    """Run a line broker until SIGTERM."""
    raise SystemExit(run(settings, protocols=[ProtocolBinding(LineFactory(), 0)]))


if __name__ == "__main__":
    try:
        command.main(prog_name="line_broker")
    except PenstockError as problem:
        raise SystemExit(f"line_broker: {problem} (exit {exit_code(problem)})") from None
