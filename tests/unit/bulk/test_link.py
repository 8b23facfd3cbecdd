from penstock.bulk import link
from penstock.flow.reason import Culprit
from penstock.model.queries import CommitBatchResponse, StageRoomResponse


def answered(name, response):
    payload = link.encode_response(7, response)[link.LENGTH_BYTES :]
    return link.decode_response(name, link.decode_reply(payload).ok)


def test_what_a_sink_waits_for_is_told_in_its_words():
    """The engine's words know what they mean; the other process gets the words."""
    culprit = Culprit("topic 'full' holds 9 messages, limit 5 (length_max)", "topic/full")
    assert answered("commit_batch", CommitBatchResponse(held=culprit)).held == str(culprit)
    assert answered("stage_room", StageRoomResponse(held=culprit)).held == str(culprit)


def test_a_refusal_may_be_in_the_words_of_a_culprit():
    payload = link.encode_problem(7, "held", Culprit("memory", "alarm/memory"))[link.LENGTH_BYTES :]
    assert link.decode_reply(payload).error.text == "memory"
