"""Each timeout is longer than what it waits for may take by its own bounds."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.codec.vectors import vector_group_sizes
from manta_swarm.network import fetch_calls, neighbours, timeouts
from manta_swarm.network.blobs import MAX_PIECE_BYTES
from manta_swarm.network.log_client import GROUPS_IN_FLIGHT
from manta_swarm.network.rpc import MAX_MESSAGE_BYTES
from manta_swarm.network.sources import CALLS_A_SOURCE
from manta_swarm.network.streams import MAX_OWN_STREAMS
from manta_swarm.network.unary import MAX_OWN_CALLS
from manta_swarm.peer.features.two_views.views import MAX_PART_BYTES
from manta_swarm.protocol.exchange import GRACE_MAX_MS, GROUP_VALUES, grace_ms
from manta_swarm.runtime.child import ASKED
from manta_swarm.runtime.in_flight import MIN_BYTES_PER_S

SLOW_LINE = 300_000 / 8  # bytes a second: a line of 0.3 Mbit/s
VIEWS_LINE = 1_000_000 / 8  # sites with a view each need one of 1 Mbit/s
DAY_MS = 86_400_000


@given(st.integers(1, DAY_MS), st.integers(1, DAY_MS), st.data())
def test_who_waits_for_a_commit_waits_longer_than_the_log_lets_it(open_ms: int, longest_ms: int, data: st.DataObject) -> None:
    """The log answers at the latest at the round's end, its grace and its timeout later; the caller knows the longest grace only."""
    longest_ms = max(open_ms, longest_ms)
    left_ms = data.draw(st.integers(0, open_ms))
    held_s = left_ms / 1000 + grace_ms(open_ms) / 1000 + timeouts.FEED_HELD_S
    assert timeouts.feed_s(left_ms, grace_ms(longest_ms)) >= held_s + timeouts.PUSH_S
    assert timeouts.feed_s(left_ms, grace_ms(longest_ms)) >= held_s + timeouts.ANSWER_S - 0.001


def test_a_round_closes_within_the_log_s_timeout_unless_the_log_is_away() -> None:
    assert grace_ms(DAY_MS) == GRACE_MAX_MS
    assert timeouts.FEED_HELD_S + timeouts.ANSWER_S > GRACE_MAX_MS / 1000


def test_a_call_has_time_to_connect_first() -> None:
    assert min(timeouts.CALL_S, timeouts.HEADER_S, timeouts.STREAM_S, timeouts.PIECE_S) > timeouts.CONNECT_S
    assert timeouts.CONNECT_S < timeouts.DAEMON_S


def test_what_a_slow_line_carries_arrives_in_time() -> None:
    """A server waits for so long at least, whatever comes; what is in flight shares the line."""
    group_bytes = max(body_num_bytes(codec, GROUP_VALUES) for codec in ("int16", "int8", "topk-2048-8"))
    assert GROUPS_IN_FLIGHT * group_bytes / SLOW_LINE <= timeouts.STREAM_S
    assert group_bytes <= MAX_PIECE_BYTES <= MAX_MESSAGE_BYTES
    assert MAX_PIECE_BYTES / SLOW_LINE <= timeouts.PIECE_S  # one at a time, which is what a fetch comes down to on a slow line


def test_a_line_of_ten_kilobytes_a_second_carries_all_calls_that_a_peer_has_open_at_one_node() -> None:
    """Each call gets the slowest pace at which a server waits, and what daemons send at a time arrives before the call is idle."""
    assert 10_000 / MAX_OWN_STREAMS >= MIN_BYTES_PER_S
    assert timeouts.STREAM_IDLE_S[0] < timeouts.STREAM_IDLE_S[1] < timeouts.STREAM_S
    assert timeouts.STREAM_IDLE_S[1] >= 3 * 32_768 / 10_000


def test_whoever_sends_a_body_waits_for_more_than_its_way() -> None:
    """Besides being sent, a body is checked, behind others, and synced to the disk, with others."""
    assert timeouts.BODY_S >= timeouts.STREAM_S + 30


def test_a_server_lets_a_caller_take_an_answer_for_as_long_as_that_waits_for_it() -> None:
    assert timeouts.STREAM_S >= timeouts.PIECE_S


def test_a_fetch_outlives_some_sources_that_stall() -> None:
    assert timeouts.FETCH_S >= 5 * timeouts.PIECE_S
    assert max(timeouts.PIECE_AGAIN_S[1], timeouts.AWAY_S) * 1.5 < timeouts.PIECE_S
    timeout_s = fetch_calls._FIRST_TIMEOUT_S + MAX_PIECE_BYTES / fetch_calls._FIRST_BYTES_PER_S
    assert timeout_s < timeouts.PIECE_S
    assert max(vector_group_sizes(10**7)) <= MAX_PIECE_BYTES


def test_our_own_calls_leave_places_for_those_that_last() -> None:
    """A peer has one patient call open at the log, and hands in beside it; fetching takes no more than its share."""
    assert CALLS_A_SOURCE + 2 < MAX_OWN_CALLS
    assert max(CALLS_A_SOURCE, GROUPS_IN_FLIGHT) < MAX_OWN_STREAMS


@pytest.mark.parametrize("pauses", [timeouts.HAND_IN_AGAIN_S, timeouts.LOG_AGAIN_S, timeouts.PIECE_AGAIN_S])
def test_pauses_grow_and_stay_shorter_than_what_is_tried_again(pauses: tuple[float, float]) -> None:
    first_s, longest_s = pauses
    assert 0 < first_s < longest_s <= timeouts.FEED_HELD_S
    assert longest_s < min(timeouts.CALL_S, timeouts.HEADER_S, timeouts.PIECE_S)


def test_an_announcement_outlives_what_it_takes_to_read_and_to_renew_it() -> None:
    shortest_s, longest_s = timeouts.ANNOUNCE_S
    assert shortest_s < longest_s
    assert neighbours._PERIODS_KNOWN * shortest_s <= timeouts.ANNOUNCED_S
    assert neighbours._PERIODS_PUBLISHED * shortest_s >= timeouts.DHT_S
    assert neighbours._PERIODS_PUBLISHED > neighbours._PERIODS_KNOWN > 1


def test_who_is_told_to_stop_ends_before_it_is_made_to() -> None:
    timeout_s = next(timeout_s for number, timeout_s in ASKED if number == signal.SIGINT)
    assert timeout_s >= timeouts.LAST_ROUND_S + timeouts.GOODBYE_S


def test_a_latency_table_is_a_small_thing() -> None:
    assert timeouts.PUSH_S < timeouts.OFFER_S < timeouts.CALL_S


def test_two_sites_give_each_other_a_part_in_time_and_wait_for_a_microbatch_longer_than_for_a_part() -> None:
    """A part goes either way.

    Who asks for a microbatch may find the other one in the middle of its own, which a site that died holds up.
    """
    assert 2 * MAX_PART_BYTES / VIEWS_LINE + timeouts.NEAR_S <= timeouts.VIEWS_EXCHANGE_S
    assert timeouts.VIEWS_MATCH_S + timeouts.NEAR_S < timeouts.VIEWS_EXCHANGE_S
    assert 2 * (timeouts.VIEWS_MATCH_S + timeouts.NEAR_S + timeouts.VIEWS_EXCHANGE_S) < timeouts.VIEWS_MICROBATCH_S
    first_s, longest_s = timeouts.VIEWS_AGAIN_S
    assert 0 < first_s < timeouts.HELLO_S < longest_s <= timeouts.ANNOUNCED_S
