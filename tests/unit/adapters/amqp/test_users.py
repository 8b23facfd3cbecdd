"""Users: guest, passwords as RabbitMQ hashes them, rows that outlive the process."""

from base64 import b64decode, b64encode
from hashlib import sha256, sha512

import pytest

from kit.workbench import Workbench
from penstock.adapters.amqp.users import User, Users, hash_of
from penstock.adapters.contract import is_loopback


def users_of(bench: Workbench, *, is_guest_local: bool = True) -> Users:
    return Users(bench.engine, is_guest_local=is_guest_local)


def test_guest_is_there_and_comes_from_this_machine_only() -> None:
    users = users_of(Workbench())
    guest = users.login("guest", "guest", "127.0.0.1")
    assert guest is not None
    assert guest.is_administrator
    assert guest.may_manage
    assert users.login("guest", "guest", "::1") is guest
    assert users.login("guest", "guest", "10.0.0.7") is None
    assert users.login("guest", "wrong", "127.0.0.1") is None
    assert users.login("nobody", "guest", "127.0.0.1") is None
    assert users_of(Workbench(), is_guest_local=False).login("guest", "guest", "10.0.0.7")


def test_a_hash_is_salt_and_digest_as_rabbitmq_writes_it() -> None:
    salted = b64decode(hash_of("secret"))
    assert salted[4:] == sha256(salted[:4] + b"secret").digest()
    known = b64encode(b"salt" + sha512(b"salt" + b"secret").digest()).decode()
    user = User("u", known, algorithm="rabbit_password_hashing_sha512")
    assert user.opens("secret")
    assert not user.opens("Secret")


@pytest.mark.parametrize("known", ["", "AAAA", "no base64!", "c2FsdA=="])
def test_no_password_opens_an_empty_or_broken_hash(known: str) -> None:
    assert not User("u", known).opens("")


def test_users_outlive_the_process_and_a_deleted_guest_stays_away() -> None:
    bench = Workbench()
    users = users_of(bench)
    users.add("ada", "lovelace", ["management"])
    users.add("bob", "x")
    assert users.delete("guest")
    assert users.delete("bob")
    assert not users.delete("bob")
    bench.stop()
    users = users_of(bench)
    assert [user.name for user in users.all()] == ["ada"]
    ada = users.login("ada", "lovelace", "10.0.0.7")
    assert ada is not None
    assert (ada.tags, ada.may_manage, ada.is_administrator) == (("management",), True, False)


def test_bad_users_are_refused_in_a_sentence() -> None:
    users = users_of(Workbench())
    with pytest.raises(ValueError, match=r"user 'a.x7f' has a control character; remove it"):
        users.add("a\x7f", "x")
    with pytest.raises(ValueError, match="at least one character"):
        users.add("", "x")
    with pytest.raises(ValueError, match="'md5' is not known"):
        users.put(User("u", "", algorithm="md5"))


def test_addresses_of_this_machine_are_known() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"))
    assert not any(is_loopback(host) for host in ("10.0.0.1", "::2", "example.org", ""))
