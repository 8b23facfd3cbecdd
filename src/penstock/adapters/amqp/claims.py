"""What a message may claim about itself, whichever way it comes: a channel or HTTP.

Readers rely on ``user-id``: whoever sent the message had that login.
"""

from penstock.adapters.amqp.users import User
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.origin import Claims


def check_claims(claims: Claims, user: User) -> None:
    """Raise 406 for another user's name and for an expiration that is no number."""
    if claims.user_id not in (None, user.name.encode()) and not user.is_impersonator:
        claimed = (claims.user_id or b"").decode("utf-8", "replace")
        text = f"user_id property set to '{claimed}' but authenticated user was '{user.name}'"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    if claims.expiration is not None and (claims.expiration_ms or 0) < 0:
        given = claims.expiration.decode("utf-8", "replace")
        text = f"invalid expiration '{given}': must be a number of milliseconds"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
