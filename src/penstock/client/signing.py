"""Signed requests, for brokers and name servers with access control (sheet 1.11).

The signature is HMAC-SHA1 over the values of all fields, ordered by their names, and the body.
Fields added later would not be covered: signing is the last step before the bytes.
"""

import base64
import hashlib
import hmac
from typing import Final

from penstock.wire.rocketmq.command import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


class Signer:
    """Signs with one pair of keys."""

    __slots__ = ("_access_key", "_secret", "_token")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._token = security_token

    def sign(self, command: Command) -> None:
        """Put name and signature into the fields of a request; signing again replaces them."""
        ext = {name: text for name, text in command.ext.items() if name != SIGNATURE}
        ext[ACCESS_KEY] = self._access_key
        if self._token:
            ext[SECURITY_TOKEN] = self._token
        content = "".join(ext[name] for name in sorted(ext)).encode() + command.body
        digest = hmac.new(self._secret, content, hashlib.sha1).digest()
        ext[SIGNATURE] = base64.b64encode(digest).decode()
        command.ext = ext
