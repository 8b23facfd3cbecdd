"""Which class of F5 a request waits in when it cannot be served at once (sheet 2.1).

Invariant: every code has a class; one that is not named here is ``admin``.
Not here: ages and capacities (``flow/fast_fail.py``), the words of a busy answer (``busy.py``).
"""

from typing import Final

from penstock.wire.rocketmq.codes import RequestCode

SEND: Final = "send"
PULL: Final = "pull"
HEARTBEAT: Final = "heartbeat"
END_TRANSACTION: Final = "end-transaction"
ACK: Final = "ack"
ADMIN: Final = "admin"

CLASSES: Final[dict[int, str]] = {
    RequestCode.SEND_MESSAGE: SEND,
    RequestCode.SEND_MESSAGE_V2: SEND,
    RequestCode.SEND_BATCH_MESSAGE: SEND,
    RequestCode.SEND_REPLY_MESSAGE: SEND,
    RequestCode.SEND_REPLY_MESSAGE_V2: SEND,
    RequestCode.CONSUMER_SEND_MSG_BACK: SEND,
    RequestCode.RECALL_MESSAGE: SEND,
    RequestCode.PULL_MESSAGE: PULL,
    RequestCode.LITE_PULL_MESSAGE: PULL,
    RequestCode.POP_MESSAGE: PULL,
    RequestCode.PEEK_MESSAGE: PULL,
    RequestCode.NOTIFICATION: PULL,
    RequestCode.HEART_BEAT: HEARTBEAT,
    RequestCode.UNREGISTER_CLIENT: HEARTBEAT,
    RequestCode.CHECK_CLIENT_CONFIG: HEARTBEAT,
    RequestCode.END_TRANSACTION: END_TRANSACTION,
    RequestCode.ACK_MESSAGE: ACK,
    RequestCode.BATCH_ACK_MESSAGE: ACK,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ACK,
    RequestCode.UPDATE_CONSUMER_OFFSET: ACK,
}


def class_of(code: int) -> str:
    """The class of a request code."""
    return CLASSES.get(code, ADMIN)
