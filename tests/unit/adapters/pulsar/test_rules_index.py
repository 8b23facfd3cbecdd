"""Which test holds the adapter to which rule: the 84 rules of seed 003, and the lines of the sheet.

``B`` numbers are the rules of Pulsar's consumers and flow control as they were found in its source,
in the order of its code; ``2.x`` are the sections of the fact sheet about what a broker does. A
rule is held by tests (``module::test``, of this folder, of ``tests/interop/pulsar`` or of
``tests/property``), or it is the client's: then what the broker must serve is named where a real
client shows it.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[2]
FOLDERS = (
    HERE,
    TESTS / "interop" / "pulsar",
    TESTS / "property",
    TESTS / "unit" / "flow",
    TESTS / "unit" / "engine" / "subscription",
)

C, F, A, D = (
    "test_consumer::",
    "test_consumer_flow::",
    "test_consumer_acks::",
    "test_consumer_dispatch::",
)
T, N, P = "test_topics::", "test_connection::", "test_pressure::"
PY = "test_python_client::"
K, L, U = "test_compaction::", "test_topic_life::", "test_inactive::"

CLIENTS = "the client's: the broker serves it"

RULES = {
    # Flow control as such.
    "B1": [
        F + "test_without_permits_nothing_comes",
        F + "test_messages_come_as_far_as_permits_reach",
    ],
    "B2": [F + "test_grants_add_up_and_are_never_beyond_what_a_queue_can_be"],
    "B3": [F + "test_a_batch_comes_whole_and_permits_go_below_zero"],
    "B4": [CLIENTS, PY + "test_the_queue_is_refilled_at_half"],
    # Names, schemas, partitions, before SUBSCRIBE.
    "B5": [N + "test_connected_tells_the_older_version_and_the_largest_message"],
    "B6": [C + "test_a_name_that_is_no_topic_is_invalid", C + "test_an_empty_name_is_refused"],
    "B7": ["test_schemas::test_a_producer_without_a_schema_is_accepted_beside_one"],
    "B8": [CLIENTS, C + "test_read_compacted_is_not_for_shared_types"],
    "B9": [CLIENTS, "test_connections::test_the_mode_of_a_list_is_honoured"],
    "B10": [C + "test_a_schema_is_brought_to_a_topic_that_nobody_uses"],
    "B11": ["test_connections::test_metadata_of_a_missing_topic_is_0_partitions"],
    "B12": [C + "test_a_subscription_of_one_partition_leaves_the_others_alone"],
    "B13": [C + "test_a_partition_is_read_by_itself"],
    "B14": [C + "test_a_missing_topic_is_made_when_the_client_wants_it"],
    "B15": ["test_connections::test_lookup_says_connect_and_our_own_address"],
    # Reconnecting.
    "B16": [CLIENTS],
    "B17": [CLIENTS],
    "B18": [CLIENTS],
    "B19": [CLIENTS],
    "B20": [CLIENTS],
    "B21": [C + "test_a_durable_subscription_that_is_there_stays_where_it_is"],
    "B22": [C + "test_a_non_durable_subscription_begins_with_the_whole_entry_of_its_start"],
    "B23": [CLIENTS],
    "B24": [C + "test_the_checks_of_subscribe_come_in_pulsars_order"],
    "B25": [CLIENTS],
    "B26": [F + "test_permits_die_with_the_consumer"],
    "B27": [CLIENTS],
    "B28": [CLIENTS, PY + "test_the_queue_is_refilled_at_half"],
    "B29": [CLIENTS, PY + "test_consumers_of_several_topics_flow_for_each"],
    "B30": [CLIENTS, PY + "test_a_queue_of_0_asks_for_one_message_per_receive"],
    "B31": [CLIENTS, PY + "test_the_queue_is_refilled_at_half"],
    "B32": [CLIENTS, PY + "test_a_paused_listener_takes_a_queue_full_and_no_more"],
    "B33": [CLIENTS, F + "test_flow_of_nothing_or_of_less_closes"],
    # SUBSCRIBE.
    "B34": [C + "test_the_right_to_consume_is_asked_for_topic_and_subscription"],
    "B35": [C + "test_without_the_right_it_is_refused_and_nothing_is_made"],
    "B36": [C + "test_a_check_of_rights_that_fails_is_a_refusal_with_its_text"],
    "B37": [
        C + "test_metadata_of_1024_bytes_are_taken_and_one_more_is_refused",
        C + "test_metadata_are_looked_at_before_the_id_and_before_the_topic_is_made",
    ],
    "B38": [C + "test_ids_are_those_of_one_connection"],
    "B39": [C + "test_the_same_id_once_it_is_done_succeeds_again_and_makes_nothing"],
    "B40": [C + "test_the_same_id_before_it_is_done_is_not_ready_and_the_first_succeeds"],
    "B41": [
        C + "test_an_id_that_failed_is_free_and_meets_its_error_only_while_the_cause_lasts",
        C + "test_an_id_that_fails_late_is_free_again",
    ],
    "B42": [C + "test_an_id_that_its_client_gave_up_waiting_for_is_free_again"],
    "B43": [
        C + "test_a_missing_topic_is_made_when_the_client_wants_it",
        C + "test_a_missing_topic_is_not_found_where_creation_is_off",
    ],
    "B44": [C + "test_a_missing_topic_is_not_found_when_the_client_does_not_force_it"],
    "B45": [C + "test_a_missing_durable_subscription_is_not_found_where_creation_is_off"],
    "B46": [C + "test_a_non_durable_subscription_is_free_of_that_rule"],
    "B47": [
        C + "test_a_schema_is_brought_to_a_topic_that_nobody_uses",
        C + "test_a_schema_is_compared_before_all_that_follows",
    ],
    "B48": [
        C + "test_a_consumer_closed_before_all_is_durable_is_not_told_success",
        C + "test_a_client_that_is_gone_before_all_is_durable_leaves_no_consumer",
    ],
    "B49": [
        C + "test_ranges_that_cannot_be_leave_no_subscription",
        C + "test_a_refused_newcomer_leaves_users_of_topic_and_subscription_as_they_were",
    ],
    "B50": [
        C + "test_read_compacted_is_not_for_shared_types",
        C + "test_read_compacted_wants_a_log",
    ],
    "B51": [C + "test_an_unknown_namespace_is_not_served_here"],
    "B52": [C + "test_a_subscription_that_is_to_be_replicated_is_warned_of_and_taken"],
    "B53": [C + "test_a_type_may_be_switched_off"],
    "B54": [C + "test_a_type_may_be_switched_off"],
    "B55": [C + "test_an_empty_name_is_refused"],
    "B56": [
        C + "test_a_client_without_batches_may_subscribe_whatever_the_topic_has",
        F + "test_a_client_of_protocol_3_is_closed_at_its_first_batch",
    ],
    "B57": [C + "test_reserved_names_are_refused", C + "test_other_odd_names_are_taken"],
    "B58": [C + "test_a_consumer_that_comes_too_often_is_limited_for_the_rest_of_the_period"],
    "B59": [C + "test_the_rate_is_that_of_address_name_and_id_whatever_the_connection"],
    "B60": [C + "test_a_fenced_topic_is_temporarily_unavailable"],
    "B61": [C + "test_a_fenced_topic_is_temporarily_unavailable"],
    "B62": [
        C + "test_a_refused_newcomer_leaves_users_of_topic_and_subscription_as_they_were",
        T + "test_a_topic_is_known_here_while_it_is_used",
    ],
    "B63": [C + "test_a_new_durable_subscription_begins_at_its_initial_position"],
    "B64": [
        C + "test_a_durable_subscription_that_is_there_stays_where_it_is",
        C + "test_the_start_id_of_a_new_durable_subscription_does_not_count",
    ],
    "B65": [C + "test_a_non_durable_subscription_is_gone_after_a_restart"],
    "B66": [C + "test_a_new_durable_subscription_may_go_back_by_seconds"],
    "B67": [
        F + "test_a_consumer_gets_up_to_its_limit_of_unacked_messages",
        F + "test_a_non_durable_subscription_has_no_limit",
    ],
    "B68": [C + "test_a_durable_subscription_stays_without_consumers"],
    "B69": [
        C + "test_a_client_that_is_gone_before_all_is_durable_leaves_no_consumer",
        C + "test_a_client_that_is_gone_while_it_waits_for_the_holder_leaves_the_counts_right",
        C + "test_a_client_that_is_gone_while_a_seek_runs_leaves_the_counts_right",
    ],
    "B70": [F + "test_messages_come_as_far_as_permits_reach"],
    "B71": [C + "test_with_nobody_connected_any_type_is_taken_and_goes_on_where_it_stands"],
    "B72": [D + "test_partitions_are_spread_by_their_index"],
    "B73": [
        C + "test_an_exclusive_holder_that_answers_keeps_its_place",
        C + "test_a_sticky_range_of_a_client_that_answers_is_refused",
        C + "test_limits_of_consumers_count_those_who_are_there",
    ],
    "B74": [C + "test_subscriptions_of_a_topic_do_not_disturb_each_other"],
    "B75": ["not needed: how Pulsar reads its log"],
    # FLOW.
    "B76": [F + "test_flow_before_connect_closes"],
    "B77": [
        F + "test_flow_of_an_unknown_consumer_is_ignored_also_of_nothing",
        F + "test_flow_before_the_consumer_is_done_does_not_count",
        F + "test_flow_of_a_consumer_that_was_refused_is_ignored",
    ],
    "B78": [F + "test_flow_of_nothing_or_of_less_closes"],
    "B79": [F + "test_a_consumer_gets_up_to_its_limit_of_unacked_messages"],
    "B80": [F + "test_messages_come_as_far_as_permits_reach"],
    "B81": [F + "test_permits_that_come_at_the_limit_are_kept_aside_until_half"],
    "B82": [F + "test_the_time_of_the_last_flow_is_kept_for_operators"],
    "B83": [F + "test_each_shared_consumer_has_permits_of_its_own"],
    "B84": [F + "test_without_permits_nothing_comes"],
    # Sheet 2.1, permits.
    "2.1 a batch costs all its messages and is never split": [
        F + "test_a_batch_comes_whole_and_permits_go_below_zero"
    ],
    "2.1 minus what is acked of it": [F + "test_a_part_of_a_batch_costs_what_is_left_of_it"],
    "2.1 a client that returns more than it paid": [
        F + "test_a_client_that_grants_permits_for_acked_messages_pays_for_them"
    ],
    "2.1 permits die with the consumer": [
        F + "test_permits_die_with_the_consumer",
        F + "test_a_cut_connection_leaves_the_place_and_no_permits_20_times",
    ],
    "2.1 a negative sum does not stop who has some": [
        F + "test_each_shared_consumer_has_permits_of_its_own"
    ],
    "2.1 a socket that takes nothing": [
        F + "test_a_socket_that_takes_nothing_stops_its_consumers_and_no_others"
    ],
    "2.1 redelivery costs permits and grants none": [
        F + "test_what_comes_again_costs_permits_again",
        F + "test_redeliver_grants_no_permits",
    ],
    # Sheet 2.2, unacked limits.
    "2.2 a consumer is blocked, its FLOWs kept aside until half": [
        F + "test_permits_that_come_at_the_limit_are_kept_aside_until_half"
    ],
    "2.2 REDELIVER unblocks": [F + "test_redeliver_unblocks_and_brings_what_was_kept_aside"],
    "2.2 an ack by another counts for the owner": [
        F + "test_an_ack_by_another_consumer_counts_for_who_has_the_message"
    ],
    "2.2 a subscription stops new reads and replays": [
        F + "test_a_subscription_at_its_limit_reads_no_more_but_replays",
        F + "test_a_subscriptions_limit_is_of_all_its_consumers",
    ],
    "2.2 0 disables": [F + "test_0_is_no_limit"],
    "2.2 exclusive and failover have none": [F + "test_who_reads_alone_has_no_limit"],
    # Sheet 2.3, dispatchers.
    "2.3 exclusive: probed, and cut off after 5 s": [
        C + "test_an_exclusive_holder_that_answers_keeps_its_place",
        C + "test_an_exclusive_holder_that_is_silent_for_5_s_is_cut_off",
    ],
    "2.3 exclusive: goes on behind what is acked": [
        D + "test_a_consumer_that_comes_back_reads_from_its_first_unacked_on"
    ],
    "2.3 failover: priority, name, partition, ring": [
        D + "test_priority_and_then_the_name_decides",
        D + "test_partitions_are_spread_by_their_index",
        D + "test_without_partitions_a_ring_of_hashes_decides",
    ],
    "2.3 failover: a second, then everybody hears": [
        D + "test_the_first_failover_consumer_waits_a_second_hears_and_gets",
        D + "test_who_joins_failover_and_is_chosen_takes_over_after_a_second",
        D + "test_when_the_active_one_leaves_all_that_remain_hear_after_a_second",
        D + "test_a_second_change_does_not_begin_the_second_anew",
    ],
    "2.3 failover: the inactive keep their permits": [
        D + "test_an_inactive_consumer_keeps_its_permits"
    ],
    "2.3 shared: priority, then in turns": [
        D + "test_shared_consumers_take_turns_message_by_message",
        D + "test_a_lower_priority_is_served_when_the_higher_ones_can_take_no_more",
        D + "test_a_shared_consumer_without_permits_is_passed_over",
        D + "test_a_blocked_shared_consumer_is_passed_over",
    ],
    "2.3 shared: replay first, by position": [
        A + "test_what_comes_again_goes_before_what_is_new_in_the_order_of_ids"
    ],
    "2.3 shared: who leaves": [
        A + "test_a_lost_connection_keeps_counts_and_adds_none",
        A + "test_counts_are_forgotten_with_the_last_consumer",
    ],
    "2.3 key-shared: which key": [
        D + "test_an_ordering_key_goes_before_the_partition_key",
        D + "test_a_key_in_base64_is_decoded",
        D + "test_without_a_key_producer_and_sequence_number_are_the_key",
        D + "test_a_batch_goes_by_the_key_of_its_metadata",
    ],
    "2.3 key-shared: auto-split": [
        D + "test_keys_are_split_by_a_ring_of_100_points_each",
        D + "test_keys_may_be_split_by_halved_ranges",
    ],
    "2.3 key-shared: sticky": [
        D + "test_sticky_consumers_have_the_keys_of_their_ranges",
        D + "test_a_hash_that_nobody_covers_waits_and_others_go_on",
        C + "test_ranges_that_cannot_be_leave_no_subscription",
    ],
    "2.3 key-shared: draining": [
        D + "test_a_key_that_moved_drains_before_its_new_owner_has_it",
        D + "test_redelivery_sends_a_key_that_moved_to_its_new_owner",
    ],
    "2.3 key-shared: bounded look-ahead": [
        D + "test_the_look_ahead_past_keys_that_wait_is_bounded",
        D + "test_a_key_that_waits_for_permits_does_not_stop_the_others",
    ],
    "2.3 counts": [
        A + "test_redeliver_by_id_counts_one_for_each",
        A + "test_redeliver_of_who_reads_alone_brings_everything_and_counts_nothing",
        A + "test_counts_are_forgotten_with_the_broker",
    ],
    "2.3 delay": [
        D + "test_a_delayed_message_waits_for_its_time_on_shared_types",
        D + "test_a_delay_means_nothing_to_who_reads_alone",
        D + "test_a_delay_within_one_tick_is_none",
        D + "test_a_delayed_message_holds_the_mark_delete_position",
        D + "test_delays_may_be_switched_off",
    ],
    # Sheet 2.4, cursors.
    "2.4 mark-delete, single acks, ack sets": [
        A + "test_the_mark_delete_position_is_the_last_of_all_acked_entries",
        A + "test_an_ack_set_acks_the_messages_whose_bits_are_not_set",
        A + "test_two_ack_sets_that_complete_each_other_ack_the_entry",
        "test_pulsar_cursor_model::CursorModel",
    ],
    "2.4 cumulative acks": [
        A + "test_a_cumulative_ack_acks_everything_up_to_an_entry",
        A + "test_a_cumulative_ack_of_shared_types_is_answered_and_ignored",
        A + "test_a_cumulative_ack_has_exactly_one_id",
        A + "test_a_cumulative_ack_of_no_entry_is_ignored",
        A + "test_the_entry_before_a_batch_is_understood_as_clients_count_it",
    ],
    "2.4 acks of what is settled or never was": [
        A + "test_an_ack_of_what_is_not_there_to_be_acked_is_ignored",
        A + "test_an_ack_of_what_was_never_delivered_is_ignored",
    ],
    "2.4 acks are kept": [
        A + "test_an_ack_is_answered_only_when_it_is_on_disk",
        A + "test_parts_of_batches_that_are_acked_survive_a_restart",
    ],
    "2.4 where a cursor begins": [
        C + "test_a_new_durable_subscription_begins_at_its_initial_position",
        C + "test_a_new_durable_subscription_may_go_back_by_seconds",
        C + "test_a_non_durable_subscription_may_begin_at_the_latest_and_at_the_earliest",
        C + "test_a_non_durable_subscription_begins_with_the_whole_entry_of_its_start",
        C + "test_start_ids_of_no_entry_mean_their_place",
        C + "test_durable_and_non_durable_ones_of_a_name_clash",
    ],
    "2.4 seek": [
        A + "test_a_seek_closes_all_consumers_and_then_succeeds",
        A + "test_a_seek_by_time_goes_to_the_first_entry_published_then_or_later",
        A + "test_a_seek_forgets_acks_and_what_was_to_come_again",
        C + "test_a_subscribe_during_a_seek_waits_and_then_succeeds_where_it_led",
    ],
    "2.4 non-durable ones end and hold nothing": [
        C + "test_a_non_durable_subscription_ends_with_its_last_consumer",
        C + "test_a_non_durable_subscription_holds_no_data_and_fills_no_quota",
    ],
    # Sheet 2.5, producers: test_producer.py, test_producer_send.py have the rest.
    "2.5 names": [
        "test_producer::test_a_producer_without_a_name_gets_one_and_is_ready",
        "test_producer::test_a_name_in_use_on_the_same_connection_is_busy_at_once",
    ],
    "2.5 access modes": [
        "test_producer::test_a_second_exclusive_one_is_fenced",
        "test_producer::test_those_that_wait_are_let_in_in_order",
        "test_producer::test_fencing_puts_live_ones_out_without_a_word_and_refuses_those_that_wait",
    ],
    "2.5 dedup": [
        "test_producers::test_an_old_sequence_gets_a_receipt_without_an_id",
        "test_producers::test_the_last_sequence_is_told_to_a_producer_of_that_name",
        "test_producers::test_of_repeated_chunks_the_last_is_refused",
    ],
    "2.5 errors of a SEND": [
        "test_producer_send::test_a_bad_checksum_costs_the_message_only",
        "test_producer_send::test_a_message_above_the_policy_is_not_allowed",
        "test_producer_send::test_a_delay_above_the_policy_is_not_allowed",
        "test_producer::test_the_end_of_a_topic_closes_its_producers",
    ],
    # Sheet 2.6, 2.7: pressure.
    "2.6 nothing that holds a producer stops its connection": [
        P + "test_a_consumer_drains_the_quota_that_holds_its_own_connections_producer",
        P + "test_a_consumer_reads_and_acks_while_a_rate_holds_its_own_connections_producer",
        P + "test_a_consumer_drains_while_an_alarm_holds_its_own_connections_producer",
        P + "test_a_consumer_is_served_when_more_sends_wait_than_a_producer_may_have",
    ],
    "2.6 paused only at the hard limit, with a PONG every 10 s": [
        N + "test_a_client_that_is_not_read_is_sent_a_pong_every_10_s_and_is_not_cut_off"
    ],
    "2.7 quotas": [
        "test_producer_send::test_quota_hold_withholds_then_closes_then_says_7_until_it_is_drained",
        "test_producer_send::test_quota_exception_closes_at_once_and_says_8",
        "test_producer_send::test_quota_eviction_does_not_disturb_producers",
        "test_limits::test_readers_alone_make_no_backlog",
    ],
    # Sheet 2.8.
    "2.8 dispatch rate": [F + "test_a_dispatch_rate_of_the_topic_gives_so_many_a_second"],
    "2.8 subscribe rate": [
        C + "test_a_consumer_that_comes_too_often_is_limited_for_the_rest_of_the_period"
    ],
    "2.8 time to live": [
        L + "test_a_time_to_live_acks_what_is_older_on_every_subscription_without_consumers",
        L + "test_what_is_too_old_is_not_delivered_to_who_comes_later",
        L + "test_who_has_a_message_that_gets_too_old_may_ack_it_and_it_does_not_come_again",
        L + "test_what_a_time_to_live_acked_stays_acked",
    ],
    "2.8 retention": [
        L + "test_what_all_have_acked_goes_without_retention",
        L + "test_retention_keeps_what_is_acked_for_readers_and_for_seek",
        L + "test_after_its_time_retention_keeps_no_longer",
        L + "test_retention_by_size_keeps_the_newest",
    ],
    "2.8 inactive topics": [
        U + "test_a_topic_that_nobody_uses_is_deleted_after_its_time",
        U + "test_a_subscription_that_has_acked_all_keeps_it_only_if_the_mode_says_so",
        U + "test_topics_that_another_protocol_made_stay",
        U + "test_a_partitioned_topic_goes_as_a_whole_where_that_is_set",
        U + "test_what_retention_keeps_is_not_deleted_with_its_topic",
    ],
    "2.8 compaction: newest per key, deletions, no key": [
        K + "test_the_newest_message_of_each_key_survives_in_the_order_of_the_topic",
        K + "test_a_null_value_and_an_empty_payload_delete_their_keys",
        K + "test_messages_without_a_key_are_dropped",
        "test_compaction_model::test_readers_see_the_newest_of_each_key_and_then_the_tail",
    ],
    "2.8 compaction: batches": [
        K + "test_of_a_batch_that_survives_in_part_each_survivor_is_an_entry_at_its_place",
        K + "test_a_batch_that_survives_as_a_whole_is_passed_on_byte_for_byte",
        K + "test_an_encrypted_batch_is_kept_as_it_is",
    ],
    "2.8 compaction: the view, then the tail": [
        K + "test_what_comes_after_it_is_the_tail_and_comes_as_it_is",
        K + "test_a_durable_subscription_reads_it_once_and_goes_on_where_it_acked",
        K + "test_the_last_message_id_is_that_of_the_last_survivor",
        K + "test_the_view_and_who_reads_it_survive",
    ],
    "2.8 terminate": [
        L + "test_all_consumers_of_a_subscription_that_has_acked_all_hear_of_the_end",
        A + "test_the_end_of_a_topic_is_told_when_all_is_acked",
        A + "test_the_end_of_a_topic_is_not_told_to_who_does_not_know_it",
        "test_producer::test_a_terminated_topic_says_so",
    ],
    "2.8 non-persistent": [
        A + "test_a_topic_without_a_log_gives_to_who_has_permits_or_drops",
        A + "test_a_batch_of_a_topic_without_a_log_comes_whole",
        A + "test_what_makes_no_sense_without_a_log_is_answered_as_pulsar_does",
    ],
    # Lines of the issue that are not among the rules above.
    "SUBSCRIBE: its order": [C + "test_the_checks_of_subscribe_come_in_pulsars_order"],
    "SUBSCRIBE: an error leaves nothing": [
        C + "test_ranges_that_cannot_be_leave_no_subscription",
        C + "test_a_subscribe_that_is_refused_before_the_rate_leaves_no_row_in_it",
        C + "test_more_subscriptions_than_the_engine_takes_are_not_allowed",
    ],
    "SUBSCRIBE: its topic goes meanwhile": [
        C + "test_a_subscribe_that_waits_while_its_topic_goes_is_not_ready"
    ],
    "Connect: life signs": [
        N + "test_a_ping_is_sent_every_30_s_and_silence_between_two_ends_it",
        N + "test_any_frame_is_a_sign_of_life",
        N + "test_who_does_not_connect_within_30_s_is_closed",
    ],
    "Connect: ids": [
        N + "test_request_ids_may_collide",
        N + "test_ids_are_any_number_of_64_bits",
    ],
    "Redeliver: by id or all": [
        A + "test_redeliver_by_id_counts_one_for_each",
        A + "test_redeliver_of_everything_counts_one_for_each",
        A + "test_redeliver_of_what_another_has_is_acked_or_unknown_is_ignored",
    ],
    "Redeliver: last message id with mark-delete": [
        A + "test_the_last_id_names_the_last_message_of_a_batch",
        A + "test_the_mark_delete_position_is_the_last_of_all_acked_entries",
    ],
    "Redeliver: unsubscribe": [
        A + "test_unsubscribe_of_one_of_several_is_refused",
        A + "test_unsubscribe_by_force_closes_the_others",
    ],
    "Redeliver: consumer stats": [A + "test_statistics_tell_permits_unacked_and_backlog"],
    "Redeliver: close of unknown ids": [A + "test_closing_what_is_not_there_succeeds"],
    "Topics that go under their consumers": [
        D + "test_a_topic_that_goes_closes_its_consumers",
        T + "test_unloading_and_deleting_tell_the_users_of_all_partitions",
    ],
    "Dispatch: why": [
        D + "test_why_says_that_a_key_drains",
        F + "test_a_consumer_gets_up_to_its_limit_of_unacked_bytes",
    ],
}


@cache
def names_in(module):
    """Functions and classes at the top of a test module, wherever it lies."""
    found = set()
    for folder in FOLDERS:
        path = folder / f"{module}.py"
        if path.exists():
            tree = ast.parse(path.read_text("utf-8"))
            found |= {each.name for each in tree.body if hasattr(each, "name")}
    return found


def test_every_one_of_the_84_rules_is_named():
    assert [rule for rule in RULES if rule[0] == "B"] == [f"B{number}" for number in range(1, 85)]


@pytest.mark.parametrize("rule", RULES)
def test_the_tests_of_a_rule_exist(rule):
    missing = [
        each
        for each in RULES[rule]
        if "::" in each and each.partition("::")[2] not in names_in(each.partition("::")[0])
    ]

    assert not missing
    assert RULES[rule]
