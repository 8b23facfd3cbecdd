"""The banner: endpoints, limits, and amber marks for weakened promises."""

import io
from pathlib import Path

import pytest

from penstock.model.ids import size_text
from penstock.server.banner import Figures, amber_marks, banner_lines, print_banner
from penstock.settings.broker import BrokerSettings, ListenerSettings, StorageSettings
from penstock.settings.load import Settings

GIB = 1 << 30
FIGURES = Figures(20 * GIB, 12 * GIB, 100 * GIB, GIB)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (16 << 20, "16 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes_read_well(count, text):
    assert size_text(count) == text


def test_endpoints_and_limits_are_shown():
    text = "\n".join(
        banner_lines(Settings(), Path("d"), {"http": "127.0.0.1:1"}, FIGURES, start_seconds=0.3)
    )
    for part in ("http://127.0.0.1:1", "12 GiB of 20 GiB", "1 GiB free", "256 MiB", "5 of 16 MiB"):
        assert part in text


def test_defaults_have_no_amber_mark():
    assert amber_marks(Settings()) == []


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings(storage=StorageSettings(durability="os")), "durability os"),
        (Settings(listeners=ListenerSettings(bind="0.0.0.0", insecure=True)), "insecure"),
        (Settings(broker=BrokerSettings(faults=True)), "faults"),
    ],
)
def test_every_weakened_promise_has_its_mark(settings, word):
    (mark,) = amber_marks(settings)
    assert word in mark


def test_marks_are_printed_under_the_lines():
    out = io.StringIO()
    print_banner(["ready"], ["durability os"], out)
    assert out.getvalue().splitlines()[:2] == ["ready", "  ! durability os"]
