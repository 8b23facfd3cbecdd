"""Style as a test: what STYLE.md enforces, checked on every file of src/ and tests/.

Each test collects every offence, so that one run shows all there is to mend.
"""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

FUNCTION_LINES_MAX = 60
POSITIONAL_MAX = 5
BANNED_MODULES = frozenset(
    ("utils", "util", "common", "helpers", "manager", "misc", "base", "core", "types")
)
BANNED_SUFFIXES = ("Manager", "Impl", "Helper", "Util", "Wrapper", "Info")
# One letter in brackets, so that this file does not offend against itself.
MARKERS = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")
ESCAPES = re.compile(r"type: ignor[e]|\bnoq[a]\b|pragma: no cove[r]")
MACHINE_PATHS = re.compile(r"(?<![\w.*])/(work|root|home|Users)/\w")
WITHOUT_ANY = ("model", "flow", "engine")
LAYERS = (
    ("model",),
    ("settings", "flow", "wire"),
    ("log",),
    ("engine",),
    ("adapters",),
    ("telemetry", "client"),
    ("bulk",),
    ("server", "spark"),
    ("pipelines",),
    ("cli",),
    ("testing", "demo"),
)
RANKS = {folder: rank for rank, folders in enumerate(LAYERS) for folder in folders}


@cache
def parsed(path):
    return ast.parse(path.read_text("utf-8"))


def nodes(paths, *kinds):
    for path in paths:
        for node in ast.walk(parsed(path)):
            if isinstance(node, kinds):
                yield path, node


def folder_of(path):
    """The part of the package a source file is in; that of Spark's finder is its own name."""
    parts = path.relative_to(ROOT / "src").parts
    return parts[1] if parts[0] == "penstock" else parts[0]


def place(path, line=0):
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def none_of(offences):
    """Fail with one line per offence; pytest's own diff would hide most of them."""
    if offences:
        pytest.fail("\n".join(" ".join(map(str, each)) for each in rows(offences)), pytrace=False)


def rows(offences):
    return [each if isinstance(each, tuple) else (each,) for each in offences]


def lines_without_docstring(node):
    """Lines of a function or class, from its first decorator-free line, docstring not counted."""
    docstring = node.body[0] if ast.get_docstring(node) is not None else None
    spent = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return node.end_lineno - node.lineno + 1 - spent


def test_no_function_is_longer_than_60_lines():
    found = nodes(SOURCE + TESTS, ast.FunctionDef, ast.AsyncFunctionDef)
    measured = [(place(p, n.lineno), n.name, lines_without_docstring(n)) for p, n in found]
    none_of([each for each in measured if each[2] > FUNCTION_LINES_MAX])


def test_functions_take_at_most_five_positional_parameters():
    offences = []
    for path, node in nodes(SOURCE, ast.FunctionDef, ast.AsyncFunctionDef):
        names = [each.arg for each in node.args.posonlyargs + node.args.args]
        if len([name for name in names if name not in ("self", "cls")]) > POSITIONAL_MAX:
            offences.append((place(path, node.lineno), node.name))
    none_of(offences)


def test_no_module_or_folder_has_a_name_that_says_nothing():
    parts = {path: {path.stem, *path.relative_to(ROOT).parts[:-1]} for path in SOURCE + TESTS}
    none_of([place(path) for path, names in parts.items() if names & BANNED_MODULES])


def test_no_class_has_a_suffix_that_says_nothing():
    found = nodes(SOURCE, ast.ClassDef)
    assert [
        (place(p, n.lineno), n.name) for p, n in found if n.name.endswith(BANNED_SUFFIXES)
    ] == []


@pytest.mark.parametrize(
    "pattern", [MARKERS, ESCAPES, MACHINE_PATHS], ids=["marker", "escape", "path"]
)
def test_no_leftover_marker_escape_or_machine_path_is_in_any_text(pattern):
    offences = []
    for path in tracked_text():
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if pattern.search(line):
                offences.append((place(path, number), line.strip()[:80]))
    none_of(offences)


def tracked_text():
    """Every text file that git knows or would know: code, docs, scripts, settings."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split() if listed.returncode == 0 else map(str, SOURCE + TESTS)
    suffixes = (".py", ".md", ".toml", ".sh", "")
    paths = [ROOT / name for name in names if Path(name).suffix in suffixes]
    return [path for path in paths if path.is_file() and path.name != "LICENSE"]


def test_every_source_file_opens_with_a_docstring_that_says_its_purpose():
    none_of([place(p) for p in SOURCE if len(ast.get_docstring(parsed(p)) or "") < 20])


def test_model_flow_and_engine_never_say_any():
    paths = [p for p in SOURCE if folder_of(p) in WITHOUT_ANY]
    imports = nodes(paths, ast.ImportFrom)
    offences = [(p, n) for p, n in imports if "Any" in [each.name for each in n.names]]
    offences += [(p, n) for p, n in nodes(paths, ast.Attribute) if n.attr == "Any"]
    none_of([place(path, node.lineno) for path, node in offences])


def test_imports_for_annotations_follow_the_layers_too():
    """import-linter does not look under ``if TYPE_CHECKING``; this does."""
    offences = []
    for path, node in nodes(SOURCE, ast.ImportFrom, ast.Import):
        folder = folder_of(path)
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            target = module.split(".")[1:2] if module.startswith("penstock.") else []
            is_outside = bool(target) and folder in RANKS and target[0] != folder
            if is_outside and RANKS[target[0]] >= RANKS[folder]:
                offences.append((place(path, node.lineno), module))
    none_of(offences)


def test_what_is_imported_is_declared_and_what_is_declared_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {top_level(each) for each in project["dependencies"]}
    extras = {
        top_level(each)
        for name, packages in project["optional-dependencies"].items()
        if name != "dev"
        for each in packages
    }
    imported = set()
    for _, node in nodes(SOURCE, ast.ImportFrom, ast.Import):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        imported |= {name.partition(".")[0] for name in names}
    foreign = imported - sys.stdlib_module_names - {"penstock"}
    assert (foreign - needed - extras, needed - foreign) == (set(), set())


def top_level(requirement):
    """The module's name, which some packages do not share."""
    name = re.split(r"[<>=!~ ;\[]", requirement)[0].replace("-", "_")
    return {"protobuf": "google", "pulsar_client": "pulsar"}.get(name, name)


def test_unit_and_property_tests_do_not_sleep():
    paths = [p for p in TESTS if p.relative_to(ROOT / "tests").parts[0] in ("unit", "property")]
    calls = [(p, n) for p, n in nodes(paths, ast.Call) if ast.unparse(n.func) == "time.sleep"]
    none_of([place(path, node.lineno) for path, node in calls])
