"""Questions of the bulk link, put to the engine's desk; its answers, put into the link's words.

Translation only: what is right or wrong is decided in ``engine/spark/desk.py``. Called on the loop.
"""

from typing import Final

import msgspec

from penstock.bulk import link
from penstock.engine.spark.desk import QueryDesk
from penstock.engine.spark.query import PollAnswer, PollOrder, PollOutlet
from penstock.engine.topic import Topic

STATES: Final = ("running", "idle", "stopped", "failed")


def answer_of(
    question: link.AnyQuestion, desk: QueryDesk, outlet: PollOutlet
) -> link.Answer | None:
    """The answer, or None for a poll that is held; raises ``QueryRefused``."""
    answer: link.Answer | None
    match question:
        case link.Poll():
            polled = desk.poll(_order(question), outlet)
            answer = polled_of(polled) if polled is not None else None
        case link.Resolve():
            topics = desk.resolve(question.topics, question.pattern)
            answer = link.Resolved(epoch=desk.epoch, topics=[_topic_range(each) for each in topics])
        case link.ByTime():
            offsets = desk.by_time(question.topic, question.at_ms)
            answer = link.Offsets(epoch=desk.epoch, offsets={question.topic: offsets})
        case link.Lease():
            answer = _leased(question, desk)
        case link.Release():
            desk.release(question.subscription, is_final=question.is_final)
            answer = link.Done()
        case link.Report():
            state = question.state if question.state in STATES else "running"
            desk.report(question.subscription, question.progress, state, question.text)
            answer = link.Done()
        case link.Locate():
            answer = _located(question, desk)
    return answer


def polled_of(answer: PollAnswer) -> link.Polled:
    """A poll's answer as it goes over the link."""
    return link.Polled(**msgspec.structs.asdict(answer))


def _order(poll: link.Poll) -> PollOrder:
    return PollOrder(
        subscription=poll.subscription,
        topics=poll.topics,
        pattern=poll.pattern,
        start=poll.start,
        epoch=poll.epoch,
        rows_max=poll.rows_max,
        bytes_max=poll.bytes_max,
        rows_min=poll.rows_min,
        wait_ms=poll.wait_ms,
        report=poll.report,
        token=poll.id,
    )


def _leased(question: link.Lease, desk: QueryDesk) -> link.Leased:
    topics = desk.resolve(question.topics, question.pattern)
    lease = desk.lease(question.subscription, topics, question.start, ttl_ms=question.ttl_ms)
    return link.Leased(ttl_ms=lease.ttl_ms, is_broken=lease.is_broken, text=lease.text)


def _topic_range(topic: Topic) -> link.TopicRange:
    queues = [
        link.QueueRange(
            queue=queue.number,
            queue_id=int(queue.queue_id),
            incarnation=queue.incarnation,
            earliest=queue.index.min_offset,
            end=queue.durable_end,
            bytes=queue.index.bytes_between(queue.index.min_offset, queue.durable_end),
        )
        for queue in topic.queues
    ]
    return link.TopicRange(name=str(topic.name), queues=queues)


def _located(question: link.Locate, desk: QueryDesk) -> link.Located:
    span = desk.locate(
        question.topic,
        question.queue,
        question.start,
        question.end,
        entries_max=link.LOCATED_ENTRIES_MAX,
    )
    return link.Located(
        epoch=desk.epoch,
        queue_id=span.queue_id,
        incarnation=span.incarnation,
        earliest=span.earliest,
        end=span.end,
        files=[link.IndexFile(*each) for each in span.files],
        tail=span.tail,
        run_start=desk.run_start,
    )
