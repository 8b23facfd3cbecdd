"""Options of the whole suite: ``--long`` for the full-size fault tests, ``--seed`` to rerun one."""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--long",
        action="store_true",
        default=False,
        help="run fault and simulator tests at full size (minutes to hours)",
    )
    parser.addoption(
        "--seed",
        type=int,
        default=None,
        help="run seeded tests with this one seed, to look at a failure again",
    )


@pytest.fixture(scope="session")
def is_long(request):
    """True when the full-size runs were asked for."""
    return request.config.getoption("--long")


@pytest.fixture(scope="session")
def chosen_seed(request):
    """The seed given with ``--seed``, or None for the usual range."""
    return request.config.getoption("--seed")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="full size: give --long"))
