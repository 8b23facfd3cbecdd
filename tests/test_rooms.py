"""The laws of the tree: a concept is one room, and no room is knotted to another.

A module may be as long as its concept is. What is not allowed is what cuts concepts into limbs:
import cycles (those of annotations count), crowded folders, a base class that exists for one
subclass, and a short module that only one neighbour imports.
"""

import ast
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
FOLDER_FILES_MAX = 26
CRUMB_LINES = 120

# Bases that users of the package derive from; what they are for is being derived from.
# SendHook: users of the client's producer subclass it (``hooks=[...]``); message trace is one.
PUBLIC_BASES = frozenset(("PenstockError", "SendHook"))
# Packages whose modules are names for users, however short.
PUBLIC_PACKAGES = ("penstock.testing",)


def module_name(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(p): ast.parse(p.read_text("utf-8")) for p in sorted(SRC.rglob("*.py"))}
LINES = {module_name(p): len(p.read_text("utf-8").splitlines()) for p in SRC.rglob("*.py")}
FOLDERS = {module_name(p.parent / "__init__.py") for p in SRC.rglob("__init__.py")}


def imported(tree):
    """Every module of ours that is named in an import, under TYPE_CHECKING and in functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return found & TREES.keys()


GRAPH = {name: imported(tree) - {name} for name, tree in TREES.items()}


def offences(rows):
    if rows:
        pytest.fail("\n".join(rows), pytrace=False)


def test_no_module_imports_itself_by_way_of_others_even_for_annotations():
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])), pytrace=False)


def test_no_folder_has_more_files_than_a_reader_can_keep_in_mind():
    counted = Counter(path.parent.relative_to(SRC) for path in SRC.rglob("*.py"))
    offences([f"{folder}: {n} files" for folder, n in counted.items() if n > FOLDER_FILES_MAX])


def test_no_short_module_serves_a_single_neighbour():
    importers = defaultdict(set)
    for name, targets in GRAPH.items():
        for target in targets:
            importers[target].add(name)
    rows = []
    for name, users in importers.items():
        folder = name.rpartition(".")[0]
        is_alone = len(users) == 1 and next(iter(users)).rpartition(".")[0] == folder
        is_public = name in FOLDERS or name.startswith(PUBLIC_PACKAGES)
        if is_alone and not is_public and LINES[name] < CRUMB_LINES:
            rows.append(f"{name}: {LINES[name]} lines, for {next(iter(users))} only")
    offences(rows)


def classes():
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield name, node


def test_no_class_exists_for_one_subclass():
    """Inheritance is no page break. Protocols, errors and public bases are left out."""
    children = defaultdict(set)
    protocols = set()
    for module, node in classes():
        for base in node.bases:
            head = base.value if isinstance(base, ast.Subscript) else base
            word = ast.unparse(head).rpartition(".")[2]
            children[word].add((module, node.name))
            if word == "Protocol":
                protocols.add(node.name)
    made = {
        ast.unparse(node.func).rpartition(".")[2]
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    rows = []
    for module, node in classes():
        bases = {ast.unparse(base) for base in node.bases}
        is_error = any(base.endswith(("Error", "Exception")) for base in bases)
        is_left_out = node.name in protocols | PUBLIC_BASES or is_error
        if len(children[node.name]) == 1 and node.name not in made and not is_left_out:
            child = next(iter(children[node.name]))
            rows.append(f"{module}.{node.name} <- {child[0]}.{child[1]}")
    offences(rows)


def test_no_class_name_stands_for_two_things_in_a_package():
    """AMQP's methods are left out: queue.Declare and exchange.Declare are the standard's names."""
    places = defaultdict(set)
    for module, node in classes():
        parts = module.split(".")
        # A protocol is a package of its own: RocketMQ and Pulsar both have messages.
        is_protocol = parts[1:2] in (["adapters"], ["wire"]) or parts[1:3] == ["client", "pulsar"]
        package = ".".join(parts[: 3 if is_protocol else 2])
        if not module.startswith("penstock.wire.amqp.methods"):
            places[package, node.name].add(module)
    offences([f"{name}: {sorted(found)}" for (_, name), found in places.items() if len(found) > 1])
