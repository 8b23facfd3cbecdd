"""``penstock demo``: see flow control act, on a private broker, and check itself (D27).

Without a name the whole story is told: a shop, a broker, a consumer and a Spark pipeline, each slow
in its turn (``story/``). With the name of a scene one mechanism is shown in under half a minute
(``scenes/``). Exit code 0 only if everything that was claimed was seen to be true.
"""

import asyncio
import signal
import sys
from importlib.util import find_spec
from typing import Final

import click

from penstock.demo.scenes import SCENES
from penstock.demo.story import SIZES

TERMINATED: Final = 128 + signal.SIGTERM


@click.command("demo", short_help="Watch flow control act and check itself; the story, or a scene.")
@click.argument("name", required=False)
@click.option("--list", "is_list", is_flag=True, help="List the scenes.")
@click.option("--keep", "is_kept", is_flag=True, help="The story: leave it running until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="The verdict, or the list, as JSON.")
@click.option("--size", type=click.Choice(list(SIZES)), default="full", hidden=True)
def command(name: str | None, *, is_list: bool, is_kept: bool, as_json: bool, size: str) -> None:
    """Tell the whole story on a private broker with Spark; with NAME, play that scene only."""
    if is_list:
        _list(as_json)
    elif name is None:
        _tell(size, is_kept=is_kept, as_json=as_json)
    elif name in SCENES:
        _play(name, as_json)
    else:
        raise click.UsageError(f"there is no scene {name!r}; use one of {', '.join(SCENES)}")


def _tell(size: str, *, is_kept: bool, as_json: bool) -> None:
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise click.UsageError(
            "the whole story runs on Spark, which is not installed: "
            "pip install 'penstock-broker[spark]'; "
            "the scenes need nothing, see penstock demo --list"
        )
    from penstock.demo.story.board import Screen
    from penstock.demo.story.story import Story

    # A story that is told to end ends its broker and its Spark, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    story = Story(SIZES[size], Screen(is_silent=as_json))
    is_good = story.tell(is_kept=is_kept)
    if as_json:
        _print_json(story.verdict())
    sys.exit(0 if is_good else 1)


def _play(name: str, as_json: bool) -> None:
    from penstock.demo.scenes.scene import Scene

    scene = Scene(name, is_silent=as_json)
    is_good = asyncio.run(scene.play())
    if as_json:
        _print_json(scene.verdict())
    sys.exit(0 if is_good else 1)


def _list(as_json: bool) -> None:
    if as_json:
        _print_json([{"name": name, "shows": summary} for name, summary in SCENES.items()])
        return
    width = max(len(name) for name in SCENES)
    for name, summary in SCENES.items():
        click.echo(f"  {click.style(name.ljust(width), bold=True)}  {summary}")
    click.echo("\nPlay one with: penstock demo NAME; the whole story with: penstock demo")


def _print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2))
