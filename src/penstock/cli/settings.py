"""``penstock settings``: every setting in force, where it came from and what it means."""

import json

import click

from penstock.cli.flags import takes_settings
from penstock.settings.describe import as_markdown, as_rows, as_text
from penstock.settings.load import Settings


@click.command("settings", short_help="Print every setting with its value, origin and meaning.")
@takes_settings
@click.option("--json", "is_json", is_flag=True, help="One JSON object per setting, in a list")
@click.option("--markdown", "is_markdown", is_flag=True, help="The reference page of all defaults")
def command(settings: Settings, *, is_json: bool, is_markdown: bool) -> None:
    """Print every setting with its value, origin and meaning.

    Takes the same flags as `up` and prints what `up` would use. The output is a TOML file that
    --config accepts.
    """
    if is_markdown:
        click.echo(as_markdown(), nl=False)
    elif is_json:
        click.echo(json.dumps(as_rows(settings), indent=1))
    else:
        click.echo("\n".join(as_text(settings)), nl=False)
