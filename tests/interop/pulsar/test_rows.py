"""Which conversation holds which row of the observations of a real Pulsar 4.0.8.

A row is told by its section and the beginning of its first column. Tests are of this folder, or, by
their path, those that wait on a manual clock. ``None`` as a test: a row that cannot be held, with
the reason beside it. Whatever differs is a row of ``docs/pulsar.md``, "What differs from Pulsar".
"""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
CLOCK = "unit/adapters/pulsar/test_connection.py::"

ROWS = {
    1: {
        "CONNECT v20": (
            "test_connections::test_connected_says_version_size_and_features",
            "test_connections::test_the_protocol_version_is_the_lower_of_both",
            "test_connections::test_a_client_that_names_no_protocol_version_gets_0",
        ),
        "CONNECT without client_version; any command before CONNECT; second CONNECT": (
            "test_connections::test_connect_without_client_version_is_closed",
            "test_connections::test_a_command_before_connect_is_closed",
            "test_connections::test_ping_before_connect_is_answered_and_pong_is_ignored",
            "test_connections::test_a_second_connect_is_closed",
        ),
        "AUTH_RESPONSE that nobody asked for": (
            "test_connections::test_an_auth_response_that_nobody_asked_for_is_refused_and_closed",
        ),
        "unknown command type, 5.x command, garbage protobuf and so on": (
            "test_connections::test_garbage_costs_the_connection_and_gets_no_error",
        ),
        "frame length > max_message_size + 10240": (
            "test_connections::test_a_frame_above_the_limit_is_closed_at_its_length_word",
        ),
        "unsolicited PONG": ("test_connections::test_an_unsolicited_pong_is_ignored",),
        "PING by the broker": (
            "test_life_signs::test_every_connection_is_pinged_every_30_s_and_the_silent_ones_go",
            CLOCK + "test_a_ping_is_sent_every_30_s_and_silence_between_two_ends_it",
            CLOCK + "test_any_frame_is_a_sign_of_life",
        ),
        "no PONG and nothing else": (
            "test_life_signs::test_every_connection_is_pinged_every_30_s_and_the_silent_ones_go",
            CLOCK + "test_a_ping_is_sent_every_30_s_and_silence_between_two_ends_it",
        ),
        "no CONNECT (or half a frame)": (
            "test_life_signs::test_every_connection_is_pinged_every_30_s_and_the_silent_ones_go",
            "unit/server/test_pump.py::test_a_handshake_that_takes_too_long_is_cut_off",
        ),
        "broker stops (SIGTERM)": (
            "test_other_settings::test_a_broker_that_stops_closes_all_and_then_the_connection",
        ),
        "LOOKUP": ("test_connections::test_lookup_says_connect_and_our_own_address",),
        "LOOKUP with listener name": (
            "test_connections::test_lookup_with_an_unknown_listener_fails",
            "test_connections::test_lookup_with_an_empty_listener_name_is_as_without",
        ),
        "unknown tenant or namespace: METADATA, LOOKUP": (
            "test_connections::test_unknown_tenants_and_namespaces_are_not_found",
        ),
        "unknown tenant or namespace: PRODUCER, SUBSCRIBE": (
            "test_connections::test_producer_and_subscribe_in_an_unknown_namespace_are_not_ready",
            "test_connections::test_a_namespace_that_nobody_has_looked_up",
        ),
        "bad domain": (
            "test_connections::test_a_bad_topic_name_is_invalid",
            "test_connections::test_the_text_of_a_bad_domain",
            "test_connections::test_short_names_are_accepted_on_the_wire",
            "test_connections::test_a_name_with_a_cluster_in_it",
        ),
        "METADATA auto-creation false or off, topic missing": (
            "test_connections::test_metadata_of_a_missing_topic_without_creation_is_not_found",
            "test_connections::test_without_auto_creation_metadata_fails_and_lookup_does_not",
        ),
        "LOOKUP of a missing topic, auto-creation off": (
            "test_connections::test_without_auto_creation_metadata_fails_and_lookup_does_not",
        ),
        "GET_TOPICS_OF_NAMESPACE": ("test_connections::test_topics_come_with_their_hash",),
        "GET_TOPICS_OF_NAMESPACE with topics_pattern": (
            "test_connections::test_a_pattern_filters_and_an_equal_hash_says_unchanged",
            "test_connections::test_topics_of_an_empty_and_of_an_unknown_namespace",
            "test_connections::test_a_malformed_namespace_is_closed",
        ),
        "WATCH_TOPIC_LIST": (
            "test_connections::test_a_watcher_hears_of_topics_that_come_and_go",
            "test_connections::test_a_watcher_s_pattern_has_at_most_50_characters_without_its_domain",
        ),
        "CONSUMER_STATS for an unknown consumer": (
            "test_connections::test_statistics_of_an_unknown_consumer",
        ),
        "TC_CLIENT_CONNECT": ("test_connections::test_transactions_are_not_enabled",),
    },
    2: {
        "CLOSE_PRODUCER, CLOSE_CONSUMER": (
            "test_unknown_ids::test_closing_what_is_not_there_succeeds",
        ),
        "UNSUBSCRIBE, SEEK, GET_LAST_MESSAGE_ID": (
            "test_unknown_ids::test_a_request_for_an_unknown_consumer_is_a_metadata_error",
            "test_unknown_ids::test_seek_of_an_unknown_consumer_is_a_metadata_error",
        ),
        "FLOW, ACK, REDELIVER": (
            "test_unknown_ids::test_flow_for_an_unknown_consumer_is_ignored",
            "test_unknown_ids::test_acks_for_an_unknown_consumer_get_no_answer",
            "test_unknown_ids::test_redeliver_for_an_unknown_consumer_is_ignored",
        ),
        "SEND": (
            "test_unknown_ids::test_send_for_an_unknown_producer_is_closed",
            "test_unknown_ids::test_send_after_the_client_s_own_close_is_closed",
            "test_unknown_ids::test_send_after_the_broker_s_close_is_dropped",
        ),
    },
    3: {
        "same consumer id again, first one done": (
            "test_subscribe::test_the_same_consumer_id_again_succeeds_and_makes_nothing",
        ),
        "same consumer id, first not done": (
            "test_subscribe::test_the_same_consumer_id_while_the_first_is_not_done_is_not_ready",
        ),
        "topic missing, force_topic_creation=false or auto-creation off": (
            "test_subscribe::test_a_missing_topic_is_not_found_unless_creation_is_forced",
            "test_subscribe::test_a_missing_topic_is_not_found_where_creation_is_off",
        ),
        "partition 9 of a 3-partition topic": (
            "test_subscribe::test_a_partition_that_is_not_there_is_not_found",
            "test_subscribe::test_the_name_of_a_partitioned_topic_itself",
        ),
        "durable, missing subscription, auto-subscription off": (
            "test_subscribe::test_a_missing_subscription_where_creation_is_off",
        ),
        "read_compacted with Shared or Key_Shared": (
            "test_subscribe::test_read_compacted_is_for_exclusive_and_failover",
            "test_subscribe::test_read_compacted_wants_a_log",
        ),
        "empty or blank name": ("test_subscribe::test_an_empty_name_is_refused",),
        "reserved names": (
            "test_subscribe::test_reserved_names_are_refused",
            "test_subscribe::test_other_odd_names_are_taken",
        ),
        "Exclusive taken": (
            "test_subscribe::test_an_exclusive_holder_that_answers_keeps_its_place",
            "test_subscribe::test_holders_that_are_silent_for_5_s_are_cut_off",
            CLOCK + "test_who_does_not_answer_a_probe_is_cut_off",
        ),
        "other type than the live one": (
            "test_subscribe::test_a_type_other_than_the_live_one_is_refused",
            "test_subscribe::test_with_nobody_connected_any_type_is_taken",
        ),
        "Key_Shared mode / order flag differs": (
            "test_subscribe::test_another_key_shared_mode_or_order_is_refused",
        ),
        "sticky ranges": (
            "test_subscribe::test_sticky_ranges_that_cannot_be_assigned",
            "test_subscribe::test_a_sticky_range_of_somebody_who_answers_is_refused",
            "test_subscribe::test_a_sticky_range_may_end_at_65536",
        ),
        "durable/non-durable clash": ("test_subscribe::test_durable_and_non_durable_clash",),
        "metadata over 1024 bytes": ("test_subscribe::test_metadata_has_at_most_1024_bytes",),
        "type not enabled": ("test_subscribe::test_a_type_that_is_not_enabled_is_refused",),
        "limits": ("test_subscribe::test_limits_of_consumers_and_producers",),
        "fenced topic": ("test_subscribe::test_a_topic_that_is_being_deleted_is_not_ready",),
        "SUBSCRIBE while a SEEK runs": (
            "test_subscribe::test_subscribing_while_a_seek_runs_waits_and_succeeds",
        ),
        "subscribe rate 2 per 10 s": (
            "test_subscribe::test_the_subscribe_rate_is_by_address_name_and_id",
        ),
        "same consumer name twice on Shared; consumer_name ''": (
            "test_subscribe::test_a_name_may_be_taken_twice_on_shared_and_may_be_empty",
        ),
        "client of protocol 3 on a topic with batches": (
            "test_subscribe::test_a_client_without_batches_is_closed_when_one_would_be_sent",
        ),
    },
    4: {
        "FLOW 0, FLOW 2^32-1": (
            "test_permits::test_flow_of_nothing_or_of_less_is_closed",
            "test_permits::test_flow_twice_the_largest_is_accepted",
        ),
        "FLOW right behind SUBSCRIBE": (
            "test_permits::test_flow_right_behind_subscribe_is_dropped",
        ),
        "5 permits, three batches of 20: Shared": (
            "test_permits::test_shared_counts_messages_before_each_entry",
        ),
        "5 permits: Exclusive, Failover, Key_Shared": (
            "test_permits::test_other_types_go_below_zero_by_no_more_than_one_entry",
        ),
        "two Shared consumers 5 + 100 permits, 6 x 20": (
            "test_permits::test_two_shared_consumers_by_their_own_permits",
        ),
        "Shared distribution": (
            "test_permits::test_a_shared_backlog_is_dealt_in_slices_of_20",
            "test_permits::test_shared_entries_sent_one_by_one_alternate",
            "test_permits::test_a_lower_priority_is_served_when_the_higher_has_no_permits",
        ),
        "replay first": ("test_permits::test_replay_comes_first_in_the_order_of_ids",),
        "MESSAGE fields": (
            "test_permits::test_fields_of_a_message",
            "test_permits::test_a_message_names_its_partition",
            "test_permits::test_the_consumer_epoch_is_told_on_exclusive_only",
            "test_permits::test_the_epoch_of_a_redelivery_is_that_of_what_comes_again",
        ),
        "client stops reading its socket": (
            "test_permits::test_a_client_that_does_not_read_stops_nobody_else",
        ),
    },
    5: {
        "consumer limit 10, 100 permits, Shared": (
            "test_unacked::test_a_consumer_is_sent_up_to_its_limit",
            "test_unacked::test_batches_pass_the_limit_by_less_than_one",
        ),
        "ack to 6, then to 5": (
            "test_unacked::test_it_goes_on_at_half_with_the_permits_that_came_meanwhile",
        ),
        "REDELIVER while blocked": (
            "test_unacked::test_redelivery_unblocks_and_the_same_come_again",
        ),
        "ack by another consumer": (
            "test_unacked::test_an_ack_by_another_consumer_counts_for_the_owner",
        ),
        "Exclusive, Failover, non-durable Shared": (
            "test_unacked::test_exclusive_and_failover_have_no_limit",
            "test_unacked::test_a_non_durable_shared_subscription_has_no_limit",
        ),
        "subscription limit 10": (
            "test_unacked::test_a_subscription_at_its_limit_reads_no_more_but_replays",
        ),
    },
    6: {
        "Shared, Key_Shared: REDELIVER [id] / all": (
            "test_redelivery::test_by_id_raises_the_count_of_those_only",
            "test_redelivery::test_all_raises_the_count_of_all_that_is_held",
            "test_redelivery::test_ids_that_one_does_not_hold_are_ignored",
        ),
        "Exclusive, Failover: any REDELIVER": (
            "test_redelivery::test_on_one_active_consumer_everything_unacked_comes_again",
        ),
        "consumer disconnects": (
            "test_redelivery::test_counts_move_to_the_next_consumer_as_they_were",
            "test_redelivery::test_counts_move_when_the_connection_is_lost",
            "test_redelivery::test_counts_begin_anew_when_the_last_consumer_is_gone",
        ),
        "batch-index acks off": (
            "test_other_settings::test_a_set_of_acks_is_answered_and_ignored",
            "test_other_settings::test_a_cumulative_set_of_acks_acks_the_entries_before",
            "test_other_settings::test_a_batch_index_without_a_set_acks_the_whole_entry_here_too",
        ),
        "batch-index acks on": (
            "test_redelivery::test_half_of_a_batch_comes_again_and_costs_as_much",
            "test_redelivery::test_two_parts_complete_the_entry",
            "test_redelivery::test_an_empty_set_completes_the_entry",
            "test_redelivery::test_an_acknowledged_part_is_kept_over_a_reconnect",
            "test_redelivery::test_a_cumulative_part_acks_the_entries_before",
        ),
    },
    7: {
        "first consumer joins": (
            "test_failover::test_the_first_consumer_hears_and_gets_nothing_for_a_second",
        ),
        "one joins who is not chosen": (
            "test_failover::test_who_joins_and_is_not_chosen_hears_so_at_once",
        ),
        "one joins who is chosen": (
            "test_failover::test_who_joins_and_is_chosen_takes_over_after_a_second",
        ),
        "active leaves": (
            "test_failover::test_when_the_active_one_leaves_all_that_remain_hear",
            "test_failover::test_when_an_inactive_one_leaves_nobody_hears",
        ),
        "second change inside the delay": (
            "test_failover::test_a_second_change_does_not_begin_the_delay_anew",
        ),
        "choice": (
            "test_failover::test_the_lowest_priority_and_then_the_name_decides",
            "test_failover::test_partitions_are_spread_by_their_index",
            "test_failover::test_without_partitions_a_ring_decides",
        ),
        "client below v12; Exclusive": (
            "test_failover::test_clients_below_version_12_hear_nothing",
            "test_failover::test_exclusive_consumers_hear_nothing",
        ),
        "ack by an inactive consumer": (
            "test_failover::test_the_ack_of_an_inactive_consumer_is_taken",
        ),
    },
    8: {
        "hash": (
            "test_key_shared::test_the_ring_decides_by_key",
            "test_key_shared::test_sticky_ranges_by_partition_key",
            "test_key_shared::test_the_ordering_key_comes_before_the_partition_key",
            "test_key_shared::test_a_key_in_base64_is_decoded_first",
            "test_key_shared::test_without_a_key_producer_and_sequence_are_the_key",
        ),
        "auto-split ranges": (
            "test_other_settings::test_ranges_are_halved_for_who_joins_and_go_back_when_he_leaves",
        ),
        "draining": (
            "test_key_shared::test_a_key_that_moved_waits_until_the_old_owner_has_acked_all_of_it",
            "test_key_shared::test_redelivery_by_the_old_owner_sends_moved_keys_to_the_new_one",
        ),
        "sticky, uncovered hash": (
            "test_key_shared::test_a_hash_that_nobody_covers_waits_for_somebody_who_does",
        ),
        # Read in the real server's settings, not driven.
        "look-ahead limits": None,
    },
    9: {
        "SEEK by id or time": (
            "test_positions::test_seek_closes_the_consumer_then_succeeds",
            "test_positions::test_seek_closes_every_consumer_of_the_subscription",
            "test_positions::test_seek_by_id_goes_on_at_that_entry",
            "test_positions::test_seek_to_the_earliest_and_to_the_latest",
            "test_positions::test_seek_beyond_is_the_end",
            "test_positions::test_seek_by_time",
            "test_positions::test_seek_to_a_future_time_is_the_end",
            "test_positions::test_seek_without_a_target_is_an_error",
        ),
        "two consumers SEEK at once": ("test_positions::test_two_seeks_at_once",),
        "SEEK with batch_index": (
            "test_positions::test_seek_into_a_batch_ignores_the_index",
            "test_positions::test_seek_into_a_batch_honours_an_ack_set",
            "test_other_settings::test_a_seek_into_a_batch_ignores_its_set",
        ),
        "SEEK of a reader": (
            "test_positions::test_a_reader_that_seeks_begins_anew",
            "test_positions::test_resetting_the_cursor_by_rest_closes_the_consumer",
        ),
        "reader start (l,e)": (
            "test_positions::test_a_reader_begins_at_its_entry",
            "test_positions::test_a_reader_before_the_first_entry_begins_at_it",
            "test_positions::test_a_reader_beyond_the_end_waits_there",
            "test_positions::test_a_reader_without_a_start_follows_the_initial_position",
            "test_positions::test_rollback_seconds_beat_the_latest",
        ),
        "durable new subscription with start_message_id": (
            "test_positions::test_a_new_durable_subscription_ignores_a_start_id",
        ),
        "cumulative ack on Shared, Key_Shared": (
            "test_positions::test_a_cumulative_ack_on_a_shared_subscription_is_ignored",
        ),
        "ack twice, future, unknown ledger and so on": (
            "test_positions::test_acks_that_mean_nothing_are_answered_without_an_error",
            "test_positions::test_a_cumulative_ack_of_two_ids_is_ignored",
        ),
        "GET_LAST_MESSAGE_ID": (
            "test_positions::test_the_last_id_of_an_empty_topic",
            "test_positions::test_the_last_id_and_the_mark_delete_position",
            "test_positions::test_the_mark_delete_position_of_a_reader_is_before_the_first",
            "test_positions::test_the_last_id_of_a_batch_has_its_last_index",
            "test_positions::test_the_last_id_names_its_partition",
            "test_limits::test_without_a_log_there_is_no_last_id",
        ),
        "UNSUBSCRIBE": (
            "test_positions::test_unsubscribe_by_the_only_consumer",
            "test_positions::test_unsubscribe_by_one_of_two_is_refused_unless_forced",
        ),
    },
    10: {
        "PRODUCER_SUCCESS": (
            "test_producers::test_producer_success_says_name_and_last_sequence",
            "test_producers::test_the_same_producer_id_again_gets_the_same_answer",
            "test_producers::test_the_same_producer_id_while_the_first_is_not_done_is_not_ready",
            "test_producers::test_an_exclusive_producer_has_an_epoch",
        ),
        "name taken": (
            "test_producers::test_a_name_that_is_taken_is_busy",
            "test_producers::test_a_name_that_is_taken_on_the_same_connection_is_busy",
            "test_subscribe::test_holders_that_are_silent_for_5_s_are_cut_off",
        ),
        "SEND_RECEIPT": (
            "test_producers::test_a_receipt_has_the_id_and_the_sequence",
            "test_producers::test_a_receipt_returns_the_highest_sequence_of_its_send",
        ),
        "order of receipts": (
            "test_producers::test_receipts_come_in_the_order_of_sends",
            "test_producers::test_without_dedup_every_sequence_is_stored",
        ),
        "num_messages or producer_name unlike the metadata": (
            "test_producers::test_odd_numbers_and_names_in_a_send_are_accepted",
        ),
        "Exclusive second": (
            "test_producers::test_a_second_exclusive_producer_is_fenced",
            "test_producers::test_an_exclusive_producer_beside_shared_ones_is_fenced",
        ),
        "Shared beside an exclusive one": (
            "test_producers::test_a_shared_producer_beside_an_exclusive_one_is_busy",
            "test_producers::test_a_shared_producer_where_one_waits_is_busy",
        ),
        "WaitForExclusive": (
            "test_producers::test_one_that_waits_is_promoted_when_the_exclusive_one_goes",
            "test_producers::test_a_send_while_waiting_is_closed",
            "test_producers::test_a_waiter_that_is_gone_is_not_promoted",
        ),
        "ExclusiveWithFencing": ("test_producers::test_fencing_removes_the_others_without_a_word",),
        "dedup (namespace)": (
            "test_producers::test_an_old_sequence_gets_a_receipt_without_an_id",
            "test_producers::test_the_last_sequence_is_told_to_a_producer_of_that_name",
            "test_producers::test_a_number_that_is_still_being_written_is_not_stored_twice",
            "test_producers::test_a_batch_that_begins_below_is_dropped_whole",
            "test_producers::test_of_repeated_chunks_the_last_is_refused",
        ),
        "bad CRC": (
            "test_producers::test_a_bad_checksum_fails_that_message_only",
            "test_producers::test_a_send_without_a_checksum_is_delivered_without",
            "test_producers::test_a_send_without_its_payload_part_is_closed",
            "test_producers::test_metadata_that_cannot_be_read_are_taken_and_never_delivered",
        ),
        "size": (
            "test_producers::test_what_fits_the_frame_is_stored",
            "test_producers::test_what_does_not_fit_the_frame_is_closed",
        ),
        "terminate (REST)": (
            "test_producers::test_terminating_closes_producers_and_no_new_one_comes",
            "test_producers::test_the_end_of_a_topic_is_told_when_all_is_acked",
            "test_producers::test_a_subscription_with_nothing_to_come_hears_the_end_at_its_flow",
            "test_producers::test_a_reader_hears_the_end_only_if_it_acks",
        ),
        "terminate, py": ("test_python_client::test_the_end_of_a_topic",),
        "delete with force / unload / delete subscription": (
            "test_producers::test_unload_and_delete_close_all_and_a_re_create_succeeds",
            "test_producers::test_deleting_a_subscription_closes_its_consumers",
        ),
    },
    11: {
        "20 x 1 kB on a quota of 10 kB": (
            "test_limits::test_a_full_quota_closes_producers_and_refuses_new_ones",
        ),
        "producer_request_hold": (
            "test_limits::test_a_full_quota_closes_producers_and_refuses_new_ones",
        ),
        "producer_exception": (
            "test_limits::test_a_full_quota_closes_producers_and_refuses_new_ones",
        ),
        "after draining": ("test_limits::test_a_full_quota_closes_producers_and_refuses_new_ones",),
        "consumer_backlog_eviction": (
            "test_limits::test_eviction_skips_the_oldest_and_says_nothing",
        ),
        "message_age quota of 2 s": ("test_limits::test_a_quota_by_age",),
        "only readers, no durable subscription": (
            "test_limits::test_readers_alone_make_no_backlog",
        ),
        "publish rate 10 msg/s, 60 SENDs": (
            "test_limits::test_a_publish_rate_spreads_receipts",
            "test_limits::test_what_a_rate_stops",
            "test_limits::test_a_rate_does_not_stop_another_connection_for_long",
        ),
        "publish rate: bytes; batches of 20 on 10 msg/s": (
            "test_limits::test_a_publish_rate_of_bytes",
            "test_limits::test_batches_are_charged_after_they_are_taken",
        ),
        "dispatch rate 10/s (topic)": ("test_limits::test_a_dispatch_rate_spreads_messages",),
        "delayed delivery (Shared, Key_Shared)": (
            "test_limits::test_a_delayed_message_waits",
            "test_limits::test_a_delay_within_a_tick_is_none",
            "test_limits::test_a_delay_means_nothing_to_one_active_consumer",
        ),
        "TTL by REST expireMessages": ("test_limits::test_expiring_by_rest_says_nothing",),
        "inactive topic": ("test_other_settings::test_a_topic_that_nobody_uses_is_gone",),
        "non-persistent": (
            "test_limits::test_without_a_log_every_receipt_is_0_0",
            "test_limits::test_without_a_log_a_message_without_permits_is_dropped",
            "test_limits::test_without_a_log_a_batch_is_sent_whole_on_one_permit",
            "test_limits::test_without_a_log_acks_are_answered_and_redelivery_is_nothing",
            "test_limits::test_without_a_log_a_seek_succeeds_and_closes_nothing",
            "test_other_settings"
            "::test_without_a_log_too_many_at_once_are_dropped_with_a_receipt_of_no_id",
        ),
    },
    12: {
        "GET_SCHEMA without schema or unknown version": (
            "test_schemas::test_a_topic_without_a_schema_has_none",
            "test_schemas::test_an_unknown_version_is_not_found",
            "test_schemas::test_a_schema_is_told_with_its_topic_as_name",
        ),
        "PRODUCER": (
            "test_schemas::test_versions_count_up_and_old_texts_keep_theirs",
            "test_schemas::test_an_optional_field_may_go",
            "test_schemas::test_a_producer_without_a_schema_is_accepted_beside_one",
        ),
        "required field added, type changed and so on": (
            "test_schemas::test_what_is_not_compatible_both_ways_is_refused",
            "test_schemas::test_the_texts_of_refusals",
        ),
        "unparseable JSON / Avro text": (
            "test_schemas::test_a_text_that_cannot_be_read_is_refused",
        ),
        "String schema with data `null`, then with empty data": (
            "test_schemas::test_string_schemas_of_other_data_are_other_versions",
        ),
        "SUBSCRIBE with a schema on a topic without": (
            "test_schemas::test_a_consumer_registers_a_schema_on_a_topic_without_one",
            "test_schemas::test_a_consumer_that_takes_any_schema_registers_none",
            "test_schemas::test_a_schema_of_type_none_is_accepted",
        ),
        "schemaValidationEnforced": (
            "test_schemas::test_enforced_validation_wants_a_schema_of_producers_only",
            "test_schemas::test_without_auto_update_new_schemas_are_refused",
            "test_schemas::test_without_auto_update_what_is_known_is_taken_and_nothing_new",
        ),
    },
    13: {
        "PUT {topic}/partitions n": (
            "test_rest::test_partitions_are_made_once",
            "test_rest::test_partitions_of_a_plain_topic_are_a_conflict",
            "test_rest::test_partitions_of_an_unknown_topic",
        ),
        "PUT {topic}": (
            "test_rest::test_a_plain_topic_is_made_once_and_deleted",
            "test_rest::test_a_topic_in_use_is_deleted_by_force_only",
        ),
        "GET /lookup/v2/topic": (
            "test_rest::test_lookup",
            "test_rest::test_lookup_in_an_unknown_namespace",
        ),
        "PUT namespaces/t/n": (
            "test_rest::test_namespaces_and_tenants",
            "test_rest::test_a_tenant_is_made_once",
        ),
        "PUT and GET compaction": ("test_rest::test_compaction_runs_and_says_so",),
        "deduplication, schemaCompatibilityStrategy, subscription/x": (
            "test_rest::test_policies_are_set_and_told",
            "test_rest::test_subscriptions_are_made_once",
            "test_rest::test_health_and_version",
        ),
    },
}
COUNTS = {1: 22, 2: 4, 3: 21, 4: 9, 5: 6, 6: 5, 7: 8, 8: 5, 9: 10, 10: 15, 11: 14, 12: 7, 13: 6}
"""Rows of each section of the sheet; its last one is figures."""

NAMED = sorted({name for rows in ROWS.values() for tests in rows.values() for name in tests or ()})


def test_every_row_is_here():
    assert {section: len(rows) for section, rows in ROWS.items()} == COUNTS


@pytest.mark.parametrize("module", sorted({name.partition("::")[0] for name in NAMED}))
def test_the_conversations_of_every_row_are_there(module):
    path = TESTS / module if module.endswith(".py") else HERE / f"{module}.py"
    defined = {
        each.name for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)
    }
    wanted = {name.partition("::")[2] for name in NAMED if name.partition("::")[0] == module}
    assert wanted <= defined
