"""Every exam asks in time, in the middle and after the end."""

from collections.abc import Iterator

import pytest

from kit.exam import unfinished


@pytest.fixture(autouse=True)
def whole_exams(request: pytest.FixtureRequest) -> Iterator[None]:
    unfinished()
    yield
    left = unfinished()
    if request.path.name.startswith("test_exam"):
        assert left == []
