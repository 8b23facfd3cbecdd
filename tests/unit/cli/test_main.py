"""The command itself: verbs, help, errors and exit codes."""

import contextlib
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from penstock import __version__
from penstock.cli import main as cli
from penstock.model import errors

EXIT_CODES_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "exit-codes.md"


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


def test_the_version_is_printed(capsys):
    assert run(capsys, "--version") == (0, f"penstock {__version__}\n", "")


def test_help_lists_every_verb_with_a_sentence(capsys):
    code, out, _ = run(capsys, "--help")
    listed = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line]
    assert code == 0
    assert set(cli.VERBS) <= set(listed)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_explains_itself(capsys, verb):
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    assert out.startswith(f"Usage: penstock {verb}")


def test_every_file_with_a_command_is_a_verb():
    folder = Path(cli.__file__).parent
    with_command = {
        path.stem
        for path in folder.glob("*.py")
        if path.stem != "main" and "\ndef command(" in path.read_text("utf-8")
    }
    assert with_command <= set(cli.VERBS)


def test_a_misspelt_verb_names_the_nearest(capsys):
    code, _, err = run(capsys, "setings")
    assert code == 2
    assert "did you mean settings?" in err


def test_a_verb_like_no_other_is_answered_with_the_list(capsys):
    code, _, err = run(capsys, "zzzzzz")
    assert code == 2
    assert ", ".join(cli.VERBS) in err


def test_a_misspelt_flag_is_a_usage_error(capsys):
    code, _, err = run(capsys, "settings", "--durabilty", "os")
    assert code == 2
    assert "--durability" in err


def test_an_error_is_one_sentence_without_a_traceback(capsys):
    code, out, err = run(capsys, "settings", "--durability", "often")
    assert (code, out) == (2, "")
    assert err.startswith("penstock: storage.durability is 'often'")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SettingsError, 2),
        (errors.StartRefused, 3),
        (errors.LogCorrupt, 4),
        (errors.FormatTooNew, 4),
        (errors.SyncFailed, 5),
        (errors.AppendFailed, 5),
        (errors.NotFound, 1),
        (errors.InvariantBroken, 1),
    ],
)
def test_each_kind_of_error_has_its_documented_exit_code(error, code):
    assert cli.exit_code(error("x")) == code
    assert f"| {code} |" in EXIT_CODES_PAGE.read_text("utf-8")


def test_the_way_to_up_imports_neither_event_loop_nor_web_stack():
    """Start-up is 0.4 s in all; what the command line imports comes on top of the server."""
    heavy = ("asyncio", "sqlite3", "rich", "starlette", "uvicorn", "typer", "pydantic", "tomllib")
    program = (
        "import sys, penstock.cli.main, penstock.cli.up\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


def every_command(command, words=()):
    yield " ".join(words), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from every_command(command.get_command(context, name), (*words, name))


def test_the_help_of_every_verb_ends_with_examples_of_it():
    _, *commands = every_command(cli.penstock)
    for words, command in commands:
        text = command.get_help(click.Context(command, info_name=words))
        assert f"  penstock {words}" in text.partition("Example")[2], words
    assert set(cli.EXAMPLES) <= {words for words, _ in commands}


@pytest.mark.parametrize("line", sorted({line for each in cli.EXAMPLES.values() for line in each}))
def test_every_example_is_read_as_the_command_line_reads_it(line):
    command, words = cli.penstock, shlex.split(line.partition(" <")[0])
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.get_command(click.Context(command), words.pop(0))
    with contextlib.ExitStack() as stack:
        if line.startswith(("log ", "interop ")):  # directories that are not here
            stack.enter_context(pytest.raises(click.BadParameter, match="does not exist"))
        command.make_context(line, words)
