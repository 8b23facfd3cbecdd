"""Which test holds the Pulsar client to which rule of seed 003 (B4, B8-B33, B84).

A rule is held by tests (``module::test``) of this folder, of ``tests/property`` or of
``tests/interop/pulsar_client``.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[2]
FOLDERS = (HERE, HERE / "consumer", TESTS / "property", TESTS / "interop" / "pulsar_client")

C = "test_consumer::"
Q = "test_receiver_queue::"
B = "test_backoff::"
P = "test_pulsar_client_permits::"
H = "test_handler::"
L = "test_lookup::"

RULES = {
    "B4": [C + "test_permits_gather_until_half_of_the_queue_was_taken"],
    "B8": [
        C + "test_a_name_that_is_no_topic_is_refused_before_anything_is_sent",
        C + "test_a_subscription_needs_a_name_that_pulsar_does_not_keep",
        C + "test_compacted_reads_are_for_persistent_topics_with_one_active_consumer",
        C + "test_a_listener_for_active_changes_is_for_failover_only",
        C + "test_a_closed_client_subscribes_to_nothing",
    ],
    "B9": [
        C + "test_several_topics_are_received_from_as_one",
        C + "test_a_pattern_takes_the_topics_that_match_and_new_ones_later",
        C + "test_a_pattern_excludes_names",
    ],
    # With SUBSCRIBE and PRODUCER themselves: a broker registers it before anything else (B47).
    "B10": [C + "test_subscribe_says_all_there_is_to_say"],
    "B11": [C + "test_partitions_are_asked_for_first_and_one_topic_is_one_consumer"],
    "B12": [C + "test_partitions_are_children_of_one_parent"],
    "B13": [
        "test_topics::test_the_index_of_a_partition_comes_from_its_name",
        C + "test_partitions_are_children_of_one_parent",
    ],
    "B14": [C + "test_subscribe_says_all_there_is_to_say"],
    "B15": [
        C + "test_partitions_are_asked_for_first_and_one_topic_is_one_consumer",
        L + "test_a_redirect_is_followed_and_its_authority_passed_on",
        "test_client::test_a_producer_asks_for_partitions_then_for_its_broker",
    ],
    "B16": [
        B + "test_it_doubles_from_100_ms_to_60_s",
        B + "test_without_a_mandatory_stop_there_is_none",
        B + "test_success_begins_it_anew",
        B + "test_a_mandatory_stop_is_met_once_and_then_it_goes_on_as_before",
        "test_partition_producer::test_a_try_to_come_back_is_made_just_before_sends_time_out",
        C + "test_after_a_success_the_first_wait_is_the_shortest_again",
    ],
    "B17": [
        C + "test_a_second_connect_while_one_is_under_way_is_ignored",
        C + "test_a_second_connect_while_the_first_looks_for_its_broker_is_ignored",
        C + "test_one_that_was_closed_does_not_connect_again",
    ],
    "B18": [C + "test_failures_to_come_back_are_tried_again_for_ever"],
    "B19": [
        H + "test_closed_while_it_looks_for_its_broker_it_is_never_opened",
        C + "test_closed_while_it_looks_for_its_broker_it_never_subscribes",
        C + "test_a_subscription_that_succeeds_after_close_is_undone",
    ],
    "B20": [
        C + "test_after_a_reconnect_permits_begin_anew_and_the_queue_is_empty",
        C + "test_one_that_is_not_durable_comes_back_with_its_first_message_not_handed_out",
    ],
    "B21": [
        C + "test_a_durable_subscription_comes_back_without_a_start_id",
        C + "test_a_durable_subscription_that_was_moved_comes_back_without_a_start_id_too",
    ],
    "B22": [
        C + "test_one_that_is_not_durable_comes_back_with_its_first_message_not_handed_out",
        C + "test_one_that_is_not_durable_and_received_nothing_says_no_more_than_before",
        C + "test_with_an_empty_queue_it_comes_back_behind_the_last_one_handed_out",
    ],
    "B23": [C + "test_candidates_for_the_dead_letter_topic_are_forgotten_on_reconnect"],
    "B24": [
        C + "test_subscribe_says_all_there_is_to_say",
        C + "test_bytes_send_no_schema_and_key_shared_says_its_ranges",
        C + "test_subscribe_says_its_type_and_how_often_all_was_wanted_again",
    ],
    "B25": [C + "test_a_subscription_that_succeeds_after_close_is_undone"],
    "B26": [C + "test_after_a_reconnect_permits_begin_anew_and_the_queue_is_empty"],
    "B27": [C + "test_subscribe_completes_once_although_it_succeeds_often"],
    "B28": [C + "test_the_whole_queue_is_granted_after_subscribe"],
    "B29": [
        C + "test_children_flow_only_when_all_are_subscribed",
        C + "test_a_child_that_comes_back_flows_by_itself",
        C + "test_a_child_that_is_not_durable_does_not_wait_for_the_others",
        Q + "test_a_child_waits_for_its_parent_once",
    ],
    "B30": [C + "test_a_queue_of_0_asks_for_one_message_per_receive"],
    "B31": [
        C + "test_permits_gather_until_half_of_the_queue_was_taken",
        Q + "test_what_gathered_goes_out_in_one_grant",
    ],
    "B32": [
        C + "test_no_flow_while_paused_and_what_gathered_when_resumed",
        C + "test_a_queue_of_0_asks_for_nothing_while_paused",
    ],
    "B33": [
        C + "test_nothing_is_granted_without_a_connection",
        Q + "test_without_a_connection_nothing_is_granted_and_nothing_gathers",
        P + "test_whatever_gives_permits_back_a_consumer_neither_loses_nor_makes_any",
    ],
    "B84": [
        P + "test_granted_less_delivered_never_exceeds_the_queue",
        P + "test_an_application_that_receives_is_never_starved",
        P + "test_whatever_gives_permits_back_a_consumer_neither_loses_nor_makes_any",
    ],
}


@cache
def names_in(module):
    for folder in FOLDERS:
        path = folder / f"{module}.py"
        if path.is_file():
            tree = ast.parse(path.read_text("utf-8"))
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
            return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    return set()


def test_every_rule_of_the_client_is_in_the_table():
    wanted = {f"B{number}" for number in (4, *range(8, 34), 84)}
    assert RULES.keys() == wanted


@pytest.mark.parametrize("rule", RULES)
def test_the_names_in_a_rule_exist(rule):
    assert RULES[rule]
    for name in RULES[rule]:
        module, _, test = name.partition("::")
        assert test in names_in(module), name
