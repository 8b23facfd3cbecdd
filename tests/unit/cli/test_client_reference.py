import inspect
from pathlib import Path

import penstock.client.pulsar
from penstock.cli.client_reference import (
    PULSAR_OPTIONS,
    as_markdown,
    options_of,
    public_classes,
    pulsar_as_markdown,
)
from penstock.client import Admin, LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from penstock.client.options import describe

REFERENCE = Path(__file__).parents[3] / "docs/reference/client.md"
PULSAR_REFERENCE = REFERENCE.with_name("pulsar-client.md")


def test_the_reference_page_is_in_step_with_the_code():
    assert REFERENCE.read_text("utf-8") == as_markdown(), (
        "run: .venv/bin/python -m penstock.cli.client_reference > docs/reference/client.md"
    )


def test_the_reference_page_of_the_pulsar_client_is_in_step_with_the_code():
    assert PULSAR_REFERENCE.read_text("utf-8") == pulsar_as_markdown(), (
        "run: .venv/bin/python -m penstock.cli.client_reference pulsar"
        " > docs/reference/pulsar-client.md"
    )


def test_every_option_of_the_pulsar_client_is_on_its_page():
    page = pulsar_as_markdown()
    for _, options in PULSAR_OPTIONS.values():
        assert [each for each in describe(options) if f"| `{each.name}` |" not in page] == []


def test_every_option_of_every_class_is_on_the_page():
    page = as_markdown()
    for kind in (Admin, LitePullConsumer, Producer, PullConsumer, PushConsumer):
        options = options_of(kind)
        assert options is not None, kind
        missing = [each.name for each in describe(options) if f"| `{each.name}` |" not in page]
        assert missing == []
    assert options_of(Message) is None


def test_every_public_class_and_method_says_what_it_is():
    silent = []
    for kind in [*public_classes(), *public_classes(penstock.client.pulsar)]:
        if not kind.__module__.startswith("penstock.client"):
            continue
        for name, member in [(kind.__name__, kind), *vars(kind).items()]:
            is_shown = inspect.isfunction(member) or isinstance(member, (property, type))
            if is_shown and not name.startswith("_") and not inspect.getdoc(member):
                silent.append(f"{kind.__name__}.{name}")
    assert silent == []
