"""``penstock demo``: see a flow-control mechanism act, on a private broker, in under half a minute.

Without a name the scenes are listed; with one it is played, narrated as it goes, and judged: exit
code 0 only if everything that the scene claims was seen to be true (D27).
"""

import asyncio
import sys

import click

from penstock.cli.scenes import SCENES, load_scene


@click.command("demo", short_help="Watch one flow-control mechanism act and check itself.")
@click.argument("name", required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="The list of scenes, or the verdict, as JSON."
)
def command(name: str | None, as_json: bool) -> None:
    """Play the scene NAME on a private broker; without a name, list the scenes."""
    if name is None:
        _list(as_json)
        return
    if name not in SCENES:
        raise click.UsageError(f"there is no scene {name!r}; use one of {', '.join(SCENES)}")
    from penstock.cli.scenes.house import House

    house = House(name, is_silent=as_json)
    is_good = asyncio.run(house.play(load_scene(name)))
    if as_json:
        _print_json(house.verdict())
    sys.exit(0 if is_good else 1)


def _list(as_json: bool) -> None:
    if as_json:
        _print_json([{"name": name, "shows": summary} for name, summary in SCENES.items()])
        return
    width = max(len(name) for name in SCENES)
    for name, summary in SCENES.items():
        click.echo(f"  {click.style(name.ljust(width), bold=True)}  {summary}")
    click.echo("\nPlay one with: penstock demo NAME")


def _print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2))
