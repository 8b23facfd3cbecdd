"""Web pages, smugglers and those who only look, on the HTTP port."""

import base64
import json
import stat
import urllib.error
import urllib.request

import pytest

PATHS = ("/livez", "/metrics", "/api/topics", "/api/groups", "/api/queries", "/api/flow")


def ask(victim, head, body=b""):
    """Send a request as it is; the whole answer until the broker hangs up or falls silent."""
    with victim.dial("http") as peer:
        peer.settimeout(2)
        peer.sendall(head.encode() + b"\r\n\r\n" + body)
        heard = b""
        try:
            while data := peer.recv(65536):
                heard += data
        except TimeoutError:
            return heard, False
        return heard, True


def manage(victim, method, path, body=None, user="guest:guest"):
    request = urllib.request.Request(
        f"{victim.broker.http_url}{path}",
        None if body is None else json.dumps(body).encode(),
        {"authorization": "Basic " + base64.b64encode(user.encode()).decode()},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("host", ["evil.example", "evil#localhost", "localhost@evil.example", ""])
def test_a_page_of_another_name_reads_nothing(attack, host):
    with attack() as victim:
        for path in PATHS:
            heard, is_closed = ask(victim, f"GET {path} HTTP/1.1\r\nHost: {host}")
            assert heard.split()[1] == b"403", path
            assert is_closed


def test_a_body_of_two_lengths_ends_the_connection(attack):
    with attack() as victim:
        head = (
            "POST /api/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: 6\r\nTransfer-Encoding: chunked"
        )
        heard, is_closed = ask(
            victim, head, b"0\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert heard.split()[1] == b"400"
        assert heard.count(b"HTTP/1.1 ") == 1
        assert is_closed


def test_a_head_that_is_too_large_is_refused_in_one_read_too(attack):
    with attack() as victim:
        heard, _ = ask(victim, "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * 20_000)
        assert heard.split()[1] in (b"431", b"400")


def test_blank_passwords_open_nothing(attack):
    with attack() as victim:
        wanted = {"password": "", "tags": "administrator"}
        assert manage(victim, "PUT", "/api/users/x", wanted) == 400
        assert manage(victim, "PUT", "/api/users/y", {"password_hash": "", "tags": ""}) == 201
        assert manage(victim, "GET", "/api/whoami", user="x:") == 401
        assert manage(victim, "GET", "/api/overview", user="y:") == 401


def test_who_only_looks_changes_nothing(attack):
    with attack() as victim:
        made = {"password": "p", "tags": "monitoring"}
        assert manage(victim, "PUT", "/api/users/watcher", made) == 201
        assert manage(victim, "GET", "/api/queues", user="watcher:p") == 200
        for method, path in (
            ("DELETE", "/api/queues/%2F/honest"),
            ("DELETE", "/api/queues/%2F/honest/contents"),
            ("PUT", "/api/queues/%2F/other"),
        ):
            assert manage(victim, method, path, {}, user="watcher:p") == 401
        assert manage(victim, "GET", "/api/queues/%2F/honest") == 200


def test_files_are_nobody_elses(attack):
    with attack() as victim:
        found = [victim.broker.data, *victim.broker.data.rglob("*")]
        assert any(each.name == "catalog.db" for each in found)
        wide = [each for each in found if stat.S_IMODE(each.stat().st_mode) & 0o077]
        assert wide == []
