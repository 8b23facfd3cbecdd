"""Who may log in: names, salted password hashes and tags, as RabbitMQ keeps them.

A hash is base64 of a random salt of 4 bytes and the digest of salt and password, so that users of a
RabbitMQ export come in with the passwords they have. ``guest`` with password ``guest`` is there
until somebody changes or deletes it, and may come from this machine only.

Invariants: passwords are never kept or shown; comparing takes the same time right or wrong; at most
``USERS_MAX`` users.
Not here: reading credentials off the wire (``handshake.py``), Basic authentication (server/http).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable
from hashlib import new as new_digest
from hmac import compare_digest
from os import urandom
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from penstock.adapters.contract import is_loopback
from penstock.model.names import control_problem
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.origin import Claims

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

USER_KIND: Final = "amqp.user"
GUEST: Final = "guest"
ADMINISTRATOR: Final = "administrator"
POLICYMAKER: Final = "policymaker"
IMPERSONATOR: Final = "impersonator"
MANAGEMENT_TAGS: Final = frozenset(("administrator", "monitoring", "policymaker", "management"))
"""Any of these opens the management API."""
CHANGING_TAGS: Final = MANAGEMENT_TAGS - {"monitoring"}
"""Any of these may change something there."""
SALT_BYTES: Final = 4
USERS_MAX: Final = 10_000
SHA256: Final = "rabbit_password_hashing_sha256"
DIGESTS: Final = {SHA256: "sha256", "rabbit_password_hashing_sha512": "sha512"}
"""RabbitMQ's names of algorithms and ours; md5 is not offered."""


class User(msgspec.Struct, frozen=True):
    """One user."""

    name: str
    password_hash: str
    """Empty = no password opens it."""
    tags: tuple[str, ...] = ()
    algorithm: str = SHA256
    denied_vhosts: tuple[str, ...] = ()
    """Those it may not use, because somebody took the permission away."""

    @property
    def is_loopback_only(self) -> bool:
        """True for guest, whose password everybody knows."""
        return self.name == GUEST

    @property
    def may_manage(self) -> bool:
        """True when one of the tags opens the management API."""
        return not MANAGEMENT_TAGS.isdisjoint(self.tags)

    @property
    def may_change(self) -> bool:
        """False for who only looks: ``monitoring`` and no other tag."""
        return not CHANGING_TAGS.isdisjoint(self.tags)

    @property
    def is_administrator(self) -> bool:
        """True when it may change users, vhosts and definitions."""
        return ADMINISTRATOR in self.tags

    @property
    def is_policymaker(self) -> bool:
        """True when it may change policies, but those of operators."""
        return self.is_administrator or POLICYMAKER in self.tags

    @property
    def is_impersonator(self) -> bool:
        """True when its messages may carry another user-id."""
        return IMPERSONATOR in self.tags

    def opens(self, password: str) -> bool:
        """True when this is its password; a blank one never is, whatever the hash says."""
        if not password:
            return False
        try:
            salted = b64decode(self.password_hash, validate=True)
        except (NotBase64, ValueError):
            return False
        digest = _digest(self.algorithm, salted[:SALT_BYTES], password)
        return len(salted) > SALT_BYTES and compare_digest(digest, salted[SALT_BYTES:])


class Users:
    """All users of the broker."""

    def __init__(self, engine: Engine, *, is_guest_local: bool) -> None:
        self._engine: Final = engine
        self._is_guest_local: Final = is_guest_local
        self._users: dict[str, User] = {GUEST: User(GUEST, hash_of(GUEST), (ADMINISTRATOR,))}
        for name, body in engine.definitions(USER_KIND).items():
            if body:
                self._users[name] = msgspec.msgpack.decode(body, type=User)
            else:
                self._users.pop(name, None)

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def all(self) -> list[User]:
        return [self._users[name] for name in sorted(self._users)]

    def login(self, name: str, password: str, host: str) -> User | None:
        """The user, when name and password are right and it may come from that address."""
        user = self._users.get(name)
        # Hashed in any case: how long the answer takes does not tell whether the name exists.
        is_right = (user or _UNKNOWN).opens(password)
        if user is None or not is_right:
            return None
        is_bound = user.is_loopback_only and self._is_guest_local
        return user if not is_bound or is_loopback(host) else None

    def may_enter(self, user: User, vhost: str) -> bool:
        """True when a user may use a vhost: each unless it was denied."""
        known = self._users.get(user.name)
        return known is not None and bool(vhost) and vhost not in known.denied_vhosts

    def deny(self, name: str, vhost: str, vhosts: Iterable[str]) -> None:
        """Take a user's permission for one of ``vhosts``; those that are gone are forgotten."""
        user = self._users[name]
        denied = [each for each in vhosts if each == vhost or each in user.denied_vhosts]
        self._store(structs.replace(user, denied_vhosts=tuple(denied)))

    def allow(self, name: str, vhost: str) -> None:
        """Give a permission back that was taken."""
        user = self._users.get(name)
        if user is not None and vhost in user.denied_vhosts:
            left = tuple([each for each in user.denied_vhosts if each != vhost])
            self._store(structs.replace(user, denied_vhosts=left))

    def check(self, user: User, more: int = 1) -> None:
        """Raise ``ValueError`` saying what is wrong with a user who is to be one of so many new."""
        if not user.name:
            raise ValueError("a user needs a name of at least one character")
        problem = control_problem("user", user.name)
        if problem is not None and user.name not in self._users:
            raise ValueError(problem)
        if user.algorithm not in DIGESTS:
            known = ", ".join(DIGESTS)
            raise ValueError(f"hashing algorithm {user.algorithm!r} is not known; use {known}")
        try:
            b64decode(user.password_hash, validate=True)
        except (NotBase64, ValueError):
            raise ValueError(f"the password hash of user '{user.name}' is not base64") from None
        if user.name not in self._users and len(self._users) + more > USERS_MAX:
            raise ValueError(f"there may be {USERS_MAX} users; delete some")

    def put(self, user: User) -> None:
        """Make or change a user; raises ``ValueError`` saying what is wrong with it.

        A new password gives no permission back.
        """
        self.check(user)
        known = self._users.get(user.name)
        if known is not None and known.denied_vhosts:
            denied = dict.fromkeys((*known.denied_vhosts, *user.denied_vhosts))
            user = structs.replace(user, denied_vhosts=tuple(denied))
        self._store(user)

    def _store(self, user: User) -> None:
        self._users[user.name] = user
        self._engine.define(USER_KIND, user.name, msgspec.msgpack.encode(user))

    def add(self, name: str, password: str, tags: Iterable[str] = ()) -> User:
        """Make or change a user by password."""
        user = User(name, hash_of(password), tuple(tags))
        self.put(user)
        return user

    def delete(self, name: str) -> bool:
        """Remove a user; guest stays away too. False when there was none."""
        if self._users.pop(name, None) is None:
            return False
        self._engine.define(USER_KIND, name, b"" if name == GUEST else None)
        return True


_UNKNOWN: Final = User("", b64encode(bytes(SALT_BYTES + 32)).decode())
"""Whom a name means that nobody has; no password is known that opens it."""


def hash_of(password: str) -> str:
    """A new salted hash of a password; ``ValueError`` for a blank one."""
    if not password:
        raise ValueError("a password must not be blank; leave it out for a user without one")
    salt = urandom(SALT_BYTES)
    return b64encode(salt + _digest(SHA256, salt, password)).decode()


def _digest(algorithm: str, salt: bytes, password: str) -> bytes:
    return new_digest(
        DIGESTS.get(algorithm, DIGESTS[SHA256]), salt + password.encode("utf-8", "surrogateescape")
    ).digest()


def check_claims(claims: Claims, user: User) -> None:
    """Raise 406 for another user's name and for an expiration that is no number.

    The same for a message of a channel and of HTTP: readers rely on ``user-id``, whoever sent the
    message had that login.
    """
    if claims.user_id not in (None, user.name.encode()) and not user.is_impersonator:
        claimed = (claims.user_id or b"").decode("utf-8", "replace")
        text = f"user_id property set to '{claimed}' but authenticated user was '{user.name}'"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    if claims.expiration is not None and (claims.expiration_ms or 0) < 0:
        given = claims.expiration.decode("utf-8", "replace")
        text = f"invalid expiration '{given}': must be a number of milliseconds"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
