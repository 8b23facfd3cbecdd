"""Errors: one root, and the tree drawn in the module is the tree there is."""

import inspect

from penstock.model import errors


def test_every_error_has_the_one_root():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(kind, errors.PenstockError) for kind in kinds)


def test_the_drawn_tree_names_every_error_and_nothing_else():
    drawn = {
        word
        for line in (errors.__doc__ or "").splitlines()
        if "+--" in line
        for word in line.partition("+--")[2].split()[:1]
    }
    kinds = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert drawn == kinds - {"PenstockError"}
