"""Unit tests for producers: who is let in, how they end, and what operators see of them."""

import pytest

from kit.pulsar.bench import PulsarBench
from penstock.adapters.pulsar import producer as room
from penstock.adapters.pulsar.connection import PROBE_MS
from penstock.model.names import TopicName, topic_name
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.wire.pulsar.frames import NO_ID, ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

TOPIC = "persistent://public/default/orders"


def settings(**pulsar) -> Settings:
    return Settings(pulsar=PulsarSettings(**pulsar))


def create(client, producer_id=1, request_id=1, topic=TOPIC, **fields):
    return client.call(
        "PRODUCER", topic=topic, producer_id=producer_id, request_id=request_id, **fields
    )


def created(client, *args, **fields):
    answer = create(client, *args, **fields)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
    return answer.producer_success


def fails(client, *args, **fields):
    answer = create(client, *args, **fields)
    assert answer.type == BaseCommand.ERROR, answer
    return ServerError(answer.error.error), answer.error.message


def kinds(client):
    return [BaseCommand.Type.Name(each.type) for each in client.commands()]


def producers(bench, topic=TOPIC):
    return [user for used in bench.broker.topics._used.values() for user in used.users]


# ---- being let in -------------------------------------------------------------------------------


def test_a_producer_without_a_name_gets_one_and_is_ready(client):
    said = created(client, request_id=7)

    assert said.request_id == 7
    assert said.producer_name.startswith("penstock-")
    assert said.last_sequence_id == -1
    assert said.HasField("schema_version")
    assert said.schema_version == b""
    assert said.producer_ready
    assert not said.HasField("topic_epoch")


def test_made_names_differ(client):
    first, second = created(client, 1), created(client, 2)

    assert first.producer_name != second.producer_name


def test_a_name_of_its_own_is_kept(client):
    assert created(client, producer_name="till-1").producer_name == "till-1"


def test_a_very_long_name_is_refused(client):
    code, _ = fails(client, producer_name="x" * (room.NAME_BYTES_MAX + 1))

    assert code is ServerError.NotAllowedError


def test_the_answer_waits_until_the_topic_is_durable(bench, client):
    client.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1)
    assert not client.connection.outgoing()
    bench.turns()
    assert not client.connection.outgoing()

    assert kinds(client) == ["PRODUCER_SUCCESS"]
    bench.cut_power()
    assert bench.engine.topic(topic_name("orders")) is not None


def test_the_same_id_again_gets_the_same_answer_even_for_another_topic(bench, client):
    first = created(client, request_id=1, producer_name="a")
    again = created(client, request_id=2, producer_name="b", topic="other")

    assert (again.request_id, again.producer_name) == (2, first.producer_name)
    assert bench.engine.topic(topic_name("other")) is None


def test_the_same_id_before_the_first_is_done_is_not_ready(client):
    client.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1)
    code, text = fails(client, request_id=2)

    assert code is ServerError.ServiceNotReady
    assert text == "Producer is already present on the connection"
    assert kinds(client) == ["PRODUCER_SUCCESS"]


def test_a_failed_id_is_free_again(client):
    assert fails(client, topic="per://x")[0] is ServerError.InvalidTopicName

    created(client)


def test_a_name_that_is_no_topic_is_refused_with_pulsars_words(client):
    assert fails(client, topic="per://x") == (
        ServerError.InvalidTopicName,
        "Invalid topic name: Invalid topic domain: 'per'",
    )


def test_a_missing_topic_that_may_not_be_made_is_not_found():
    client = PulsarBench(settings(allow_auto_topic_creation=False)).client()

    assert fails(client) == (ServerError.TopicNotFound, f"Topic not found {TOPIC}")


def test_a_partition_that_is_not_there_is_not_found(bench, client):
    bench.engine.create_topic(topic_name("orders"), queues=3)

    assert fails(client, topic=f"{TOPIC}-partition-9") == (
        ServerError.TopicNotFound,
        f"Topic not found {TOPIC}-partition-9",
    )


def test_a_partition_is_a_queue_of_the_topic(bench, client):
    topic = bench.engine.create_topic(topic_name("orders"), queues=3)
    created(client, topic=f"{TOPIC}-partition-2")
    client.publish(1, 0, b"x")

    (receipt,) = client.commands()
    assert receipt.send_receipt.message_id.ledgerId == topic.queues[2].incarnation
    assert [len(bench.records(topic, each)) for each in range(3)] == [0, 0, 1]


def test_more_producers_than_the_policy_allows_are_busy():
    client = PulsarBench(settings(max_producers_per_topic=2)).client()
    created(client, 1)
    created(client, 2)

    assert fails(client, 3) == (
        ServerError.ProducerBusy,
        f"Topic '{TOPIC}' reached max producers limit",
    )
    client.call("CLOSE_PRODUCER", producer_id=1, request_id=9)
    created(client, 3)


def test_more_producers_than_a_connection_may_have_are_too_many(client, monkeypatch):
    monkeypatch.setattr(room, "PRODUCERS_MAX", 2)
    created(client, 1)
    created(client, 2)

    assert fails(client, 3)[0] is ServerError.TooManyRequests


def test_a_terminated_topic_says_so(bench, client):
    bench.engine.create_topic(topic_name("orders"))
    bench.engine.terminate_topic(topic_name("orders"))

    assert fails(client) == (ServerError.TopicTerminatedError, "Topic was already terminated")


def test_a_fenced_topic_is_temporarily_unavailable(bench, client):
    created(client, 1)
    (topic,) = bench.broker.topics._used.values()
    topic.fence = "unloading"

    assert fails(client, 2) == (
        ServerError.ServiceNotReady,
        "Topic is temporarily unavailable",
    )


def test_a_refused_producer_leaves_nothing(bench, client):
    bench.engine.create_topic(topic_name("orders"))
    bench.engine.terminate_topic(topic_name("orders"))
    fails(client)

    assert not bench.broker.topics._used
    assert not bench.broker.access._topics


# ---- names --------------------------------------------------------------------------------------


def test_a_name_in_use_on_the_same_connection_is_busy_at_once(client):
    created(client, 1, producer_name="n")

    assert fails(client, 2, producer_name="n", epoch=5) == (
        ServerError.ProducerBusy,
        f"Producer with name 'n' is already connected to topic '{TOPIC}'",
    )


def test_a_name_in_use_elsewhere_is_busy_once_its_holder_answers_a_ping(bench, client):
    created(client, producer_name="n")
    newcomer = bench.client()
    newcomer.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1, producer_name="n")
    assert kinds(newcomer) == []
    assert kinds(client) == ["PING"]
    client.say("PONG")

    answer = newcomer.next()
    assert answer.error.error == ServerError.ProducerBusy
    created(newcomer, producer_name="m")


def test_the_name_of_a_silent_holder_is_free_after_5_s(bench, client):
    created(client, producer_name="n")
    newcomer = bench.client()
    newcomer.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1, producer_name="n")
    bench.pass_time(PROBE_MS)

    assert client.connection.is_over
    assert kinds(newcomer) == ["PRODUCER_SUCCESS"]


def test_of_two_that_want_a_silent_holders_name_the_first_gets_it(bench, client):
    created(client, producer_name="n")
    newcomers = [bench.client(), bench.client()]
    for each in newcomers:
        each.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1, producer_name="n")
    bench.pass_time(PROBE_MS)

    assert [kinds(each) for each in newcomers] == [["PRODUCER_SUCCESS"], ["ERROR"]]


def test_who_waits_for_a_probe_may_leave(bench, client):
    created(client, producer_name="n")
    newcomer = bench.client()
    newcomer.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1, producer_name="n")
    newcomer.vanish()
    bench.pass_time(PROBE_MS)

    assert producers(bench) == []


def test_the_same_name_on_another_topic_is_free(client):
    created(client, 1, producer_name="n")
    created(client, 2, producer_name="n", topic="other")


def test_a_name_is_free_when_its_connection_is_gone(bench, client):
    created(client, producer_name="n")
    client.vanish()

    created(bench.client(), producer_name="n")


# ---- access modes -------------------------------------------------------------------------------


def test_exclusive_modes_are_told_the_topic_epoch(client):
    assert created(client, producer_access_mode="Exclusive").topic_epoch == 0


def test_a_second_exclusive_one_is_fenced(client):
    created(client, 1, producer_name="a", producer_access_mode="Exclusive")

    assert fails(client, 2, producer_access_mode="Exclusive") == (
        ServerError.ProducerFenced,
        "Topic has an existing exclusive producer: a",
    )


def test_an_exclusive_one_beside_shared_ones_is_fenced(client):
    created(client, 1)

    assert fails(client, 2, producer_access_mode="Exclusive") == (
        ServerError.ProducerFenced,
        "Topic has existing shared producers",
    )


def test_a_shared_one_beside_an_exclusive_one_is_busy(client):
    created(client, 1, producer_name="a", producer_access_mode="Exclusive")

    assert fails(client, 2) == (
        ServerError.ProducerBusy,
        "Topic has an existing exclusive producer: a",
    )


def test_one_that_waits_hears_when_its_turn_has_come(client):
    created(client, 1, producer_access_mode="Exclusive")
    waiting = created(client, 2, request_id=22, producer_access_mode="WaitForExclusive")
    assert not waiting.producer_ready
    assert not waiting.HasField("topic_epoch")
    client.say("CLOSE_PRODUCER", producer_id=1, request_id=9)

    first, second = client.commands()
    assert first.success.request_id == 9
    said = second.producer_success
    assert (said.request_id, said.producer_ready, said.topic_epoch) == (22, True, 1)


def test_promotion_is_told_when_the_new_epoch_is_durable(bench, client):
    created(client, 1, producer_access_mode="Exclusive")
    created(client, 2, producer_access_mode="WaitForExclusive")
    client.say("CLOSE_PRODUCER", producer_id=1, request_id=9)
    bench.turns()
    assert len(client.connection.outgoing()) == 1

    assert kinds(client) == ["PRODUCER_SUCCESS"]


def test_while_one_waits_nobody_else_is_let_in(client):
    created(client, 1)
    created(client, 2, producer_access_mode="WaitForExclusive")

    assert fails(client, 3) == (
        ServerError.ProducerBusy,
        "Topic has an existing exclusive producer: null",
    )
    assert fails(client, 3, producer_access_mode="Exclusive")[0] is ServerError.ProducerFenced


def test_those_that_wait_are_let_in_in_order(bench, client):
    created(client, 1, producer_access_mode="Exclusive")
    others = [bench.client() for _ in range(3)]
    for each in others:
        created(each, producer_access_mode="WaitForExclusive")
    others[0].vanish()
    client.vanish()

    assert [kinds(each) for each in others[1:]] == [["PRODUCER_SUCCESS"], []]
    others[1].vanish()
    assert others[2].next().producer_success.topic_epoch == 2


def test_a_send_while_it_waits_closes_the_connection(client):
    created(client, 1)
    created(client, 2, producer_access_mode="WaitForExclusive")
    client.publish(2, 0, b"x")

    assert client.is_closed


def test_the_id_of_one_that_waits_is_in_use(client):
    created(client, 1)
    created(client, 2, producer_access_mode="WaitForExclusive")

    assert fails(client, 2)[0] is ServerError.ServiceNotReady


def test_fencing_puts_live_ones_out_without_a_word_and_refuses_those_that_wait(bench, client):
    created(client, 1, producer_name="a", producer_access_mode="Exclusive")
    waiting = bench.client()
    created(waiting, request_id=5, producer_access_mode="WaitForExclusive")
    newcomer = bench.client()
    said = created(newcomer, producer_access_mode="ExclusiveWithFencing")

    assert (said.topic_epoch, said.producer_ready) == (1, True)
    assert kinds(client) == []
    (answer,) = waiting.commands()
    assert (answer.error.request_id, answer.error.error, answer.error.message) == (
        5,
        ServerError.ProducerFenced,
        "Fenced out",
    )
    client.publish(1, 0, b"x")
    assert client.is_closed


def test_one_that_was_fenced_out_cannot_come_back_with_its_old_epoch(bench, client):
    created(client, producer_access_mode="Exclusive")
    created(bench.client(), producer_access_mode="ExclusiveWithFencing")
    old = bench.client()

    for mode in ("Exclusive", "WaitForExclusive", "ExclusiveWithFencing"):
        code, _ = fails(old, producer_access_mode=mode, topic_epoch=0)
        assert code is ServerError.ProducerFenced


def test_one_that_comes_back_in_time_keeps_its_epoch(bench, client):
    created(client, producer_access_mode="Exclusive")
    client.vanish()

    said = created(bench.client(), producer_access_mode="Exclusive", topic_epoch=0)
    assert said.topic_epoch == 0


def test_an_exclusive_one_whose_connection_is_silent_is_replaced_by_itself(bench, client):
    created(client, producer_name="n", producer_access_mode="Exclusive")
    again = bench.client()
    again.say(
        "PRODUCER",
        topic=TOPIC,
        producer_id=1,
        request_id=1,
        producer_name="n",
        producer_access_mode="Exclusive",
        topic_epoch=0,
    )
    bench.pass_time(PROBE_MS)

    assert kinds(again) == ["PRODUCER_SUCCESS"]


@pytest.mark.parametrize("end", ["kill", "cut_power", "stop"])
def test_epochs_survive_a_restart(bench, client, end):
    created(client, producer_access_mode="Exclusive")
    created(bench.client(), producer_access_mode="ExclusiveWithFencing")
    getattr(bench, end)()

    client = bench.client()
    code, _ = fails(client, producer_access_mode="Exclusive", topic_epoch=0)
    assert code is ServerError.ProducerFenced
    assert created(client, producer_access_mode="Exclusive").topic_epoch == 2


def test_an_epoch_goes_with_its_topic(bench, client):
    created(client, producer_access_mode="Exclusive")
    client.vanish()
    bench.engine.delete_topic(topic_name("orders"))
    bench.settle()

    assert bench.engine.definitions("pulsar.topic_epoch") == {}
    assert created(bench.client(), producer_access_mode="Exclusive").topic_epoch == 0


# ---- the initial subscription -------------------------------------------------------------------


def test_the_initial_subscription_is_there_before_the_answer_and_sees_everything(bench, client):
    topic = bench.engine.create_topic(topic_name("orders"))
    bench.publish(bench.channel(), topic, b"before")
    bench.settle()
    created(client, initial_subscription_name="dlq")
    bench.cut_power()

    subscription = bench.engine.topic(topic_name("orders")).subscriptions["pulsar/dlq"]
    (queue_id,) = subscription.queue_ids
    assert subscription.ready(queue_id) == 1
    assert subscription.options.is_durable


def test_an_initial_subscription_that_is_there_is_left_alone(bench, client):
    created(client, 1, initial_subscription_name="dlq")
    created(client, 2, initial_subscription_name="dlq")

    assert list(bench.engine.topic(topic_name("orders")).subscriptions) == ["pulsar/dlq"]


def test_an_initial_subscription_needs_the_right_to_make_it():
    client = PulsarBench(settings(allow_auto_subscription_creation=False)).client()

    assert fails(client, initial_subscription_name="dlq") == (
        ServerError.NotAllowedError,
        "Could not create the initial subscription due to the auto subscription creation is not "
        "allowed.",
    )


def test_without_a_log_there_is_no_initial_subscription(bench, client):
    created(client, topic="non-persistent://public/default/n", initial_subscription_name="dlq")

    found = bench.engine.non_persistent.get(TopicName("", "n", "non-persistent"))
    assert not found.subscriptions


# ---- ends ---------------------------------------------------------------------------------------


def test_closing_an_unknown_id_succeeds(client):
    assert client.call("CLOSE_PRODUCER", producer_id=77, request_id=3).success.request_id == 3


def test_close_answers_after_the_receipts_of_what_was_sent(client):
    created(client)
    client.publish(1, 0, b"x")
    client.say("CLOSE_PRODUCER", producer_id=1, request_id=9)
    assert client.connection.outgoing() == []

    assert kinds(client) == ["SEND_RECEIPT", "SUCCESS"]


def test_a_send_after_the_clients_own_close_closes_the_connection(client):
    created(client)
    client.call("CLOSE_PRODUCER", producer_id=1, request_id=9)
    client.publish(1, 0, b"x")

    assert client.is_closed


def test_a_close_before_the_answer_leaves_nothing(bench, client):
    client.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1)
    client.say("CLOSE_PRODUCER", producer_id=1, request_id=2)

    assert kinds(client) == ["SUCCESS"]
    assert producers(bench) == []


@pytest.mark.parametrize("how", ["delete", "unload"])
def test_a_topic_that_goes_closes_its_producers_and_their_sends_are_dropped(bench, client, how):
    created(client)
    name = next(iter(bench.broker.topics._used))
    getattr(bench.broker.topics, how)(name)

    (said,) = client.commands()
    assert (said.close_producer.producer_id, said.close_producer.request_id) == (1, NO_ID)
    client.publish(1, 0, b"x")
    assert kinds(client) == []
    assert not client.is_closed
    assert producers(bench) == []
    created(client)
    client.publish(1, 0, b"x")
    assert kinds(client) == ["SEND_RECEIPT"]


def test_a_topic_that_another_protocol_deletes_closes_its_producers(bench, client):
    created(client, 1, producer_access_mode="Exclusive")
    created(client, 2, producer_access_mode="WaitForExclusive")
    bench.engine.delete_topic(topic_name("orders"))

    assert sorted(kinds(client)) == ["CLOSE_PRODUCER", "ERROR"]
    assert producers(bench) == []
    assert not bench.broker.access._topics


def test_the_end_of_a_topic_closes_its_producers(bench, client):
    created(client)
    client.publish(1, 0, b"x")
    client.commands()
    bench.engine.terminate_topic(topic_name("orders"))
    client.publish(1, 1, b"y")

    assert kinds(client) == ["CLOSE_PRODUCER"]
    client.publish(1, 2, b"z")
    assert kinds(client) == []
    assert fails(client)[0] is ServerError.TopicTerminatedError


def test_only_so_many_closed_ids_are_remembered(bench, client, monkeypatch):
    monkeypatch.setattr(room, "CLOSED_KEPT", 1)
    for number in (1, 2):
        created(client, number)
    bench.broker.topics.unload(next(iter(bench.broker.topics._used)))
    client.commands()
    client.publish(2, 0, b"x")
    assert not client.is_closed
    client.publish(1, 0, b"x")

    assert client.is_closed


def test_a_broker_that_stops_closes_producers(client):
    created(client)
    client.connection.stopping("stop")

    assert kinds(client) == ["CLOSE_PRODUCER"]


def test_a_lost_connection_gives_everything_back(bench, client):
    created(client, 1)
    created(client, 2, producer_access_mode="WaitForExclusive")
    client.say("PRODUCER", topic="other", producer_id=3, request_id=3)
    client.publish(1, 0, b"x")
    client.vanish()

    assert producers(bench) == []
    assert not bench.broker.access._topics
    assert not bench.broker.topics._used
    assert bench.engine.inflight_bytes == 0


# ---- what operators see -------------------------------------------------------------------------


def test_a_view_tells_who_it_is_and_what_it_sent(bench, client):
    created(
        client,
        producer_name="till",
        encrypted=True,
        metadata=[{"key": "shop", "value": "3"}],
        producer_access_mode="Exclusive",
    )
    client.publish(1, 0, b"x")
    client.publish(1, 1, b"x", b"y")
    (producer,) = producers(bench)
    assert producer.view().pending == 2
    client.commands()
    bench.clock.advance(room.RATE_MS)

    view = producer.view()
    assert (view.name, view.producer_id, view.access_mode) == ("till", 1, "Exclusive")
    assert (view.messages, view.entries, view.pending) == (3, 2, 0)
    assert view.bytes > 0
    assert view.message_rate == pytest.approx(0.3)
    assert view.address == str(client.connection.peer)
    assert view.client_version == "Pulsar-Test"
    assert view.is_encrypted
    assert view.metadata == {"shop": "3"}
    bench.clock.advance(room.RATE_MS)
    assert producer.view().message_rate == 0
