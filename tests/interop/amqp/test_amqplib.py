"""amqplib on Node.js: our conversations, its code from npm, kept in the user's cache."""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGE = "amqplib@2.0.1"
CACHE = Path.home() / ".cache" / "penstock" / PACKAGE.replace("@", "-")
PEER = Path(__file__).with_name("amqplib_peer.js")
NPM_SECONDS_MAX = 90
SECONDS_MAX = 60


@pytest.fixture(scope="session")
def modules():
    """The directory with the package, filled on first use; without one these tests are skipped."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    # Test processes start at once; one of them installs.
    with (CACHE / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "complete").exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), PACKAGE]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=NPM_SECONDS_MAX, check=False
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"npm did not bring {PACKAGE} within {NPM_SECONDS_MAX} s")
            if done.returncode:
                pytest.skip(f"npm has no {PACKAGE}: {done.stderr.strip()[-200:]}")
            (CACHE / "complete").touch()
    return CACHE / "node_modules"


@pytest.fixture
def converse(modules, address, name):
    """Run one of the conversations; what it saw."""

    def run(conversation):
        host, port = address
        done = subprocess.run(
            ["node", str(PEER), f"amqp://guest:guest@{host}:{port}", conversation, name],
            env={**os.environ, "NODE_PATH": str(modules)},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_confirms_come_and_what_nobody_wants_comes_back(converse):
    seen = converse("confirms")
    assert seen["bodies"] == [str(number) for number in range(500)]
    assert seen["returned"] == ["NO_ROUTE"]
    assert seen["left"] == 0


def test_headers_choose_and_stay_what_they_are(converse):
    seen = converse("headers")
    assert seen["bodies"] == ["red", "size"]
    assert seen["deep"] == {"a": [1, 2.5, None]}
    assert seen["at"] == 1_700_000_000


def test_what_is_pushed_out_or_expires_is_dead_lettered(converse):
    seen = converse("deadLetters")
    assert seen == {"bodies": ["first", "second"], "reasons": ["maxlen", "expired"]}


def test_errors_have_rabbitmqs_codes_and_texts(converse, name):
    seen = converse("errors")
    assert seen["code"] == 404
    assert f"inequivalent arg 'x-message-ttl' for queue '{name}' in vhost '/'" in seen["text"]
    assert "received '2000' but current is '1000'" in seen["text"]
