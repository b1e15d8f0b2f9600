"""Leases: who gets one, how large, and when it is over; with the time as an argument."""

from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.leases import MAX_PLACES, Leased, LeaseRefusal, Leases

BASE, NEXT, KEY, OTHER, NAME = b"b" * 32, b"c" * 32, b"k" * 32, b"o" * 32, b"n" * 32
ROUND_MS = 60_000.0


def opened(*, steps: int = 1, max_microbatches: int = 1000, places: int = MAX_PLACES, due_ms: float = ROUND_MS) -> Leases:
    leases = Leases(steps, places)
    leases.open(BASE, now_ms=0.0, due_ms=due_ms, next_ms=due_ms + 5_000, max_microbatches=max_microbatches)
    return leases


def ask(
    leases: Leases, key: bytes = KEY, *, address: str = "here", microbatch_ms: int = 100, way_ms: int = 200, now_ms: float = 0.0
) -> Leased:
    lease = leases.ask(key, address, microbatch_ms=microbatch_ms, way_ms=way_ms, now_ms=now_ms)
    assert isinstance(lease, Leased), lease
    return lease


def refused(leases: Leases, key: bytes = KEY, *, address: str = "here", microbatch_ms: int = 100, now_ms: float = 0.0) -> LeaseRefusal:
    answer = leases.ask(key, address, microbatch_ms=microbatch_ms, way_ms=200, now_ms=now_ms)
    assert isinstance(answer, LeaseRefusal), answer
    return answer


def refused_back(leases: Leases, key: bytes, now_ms: float, *, base: bytes = BASE, name: bytes = NAME) -> str:
    answer = leases.back(key, base, name, now_ms)
    assert isinstance(answer, LeaseRefusal)
    return answer.reason


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_there_is_no_lease_before_the_first_base_nor_once_no_more_are_handed_out() -> None:
    assert "over here" in refused(Leases(1)).reason
    leases = opened()
    leases.shut()
    answer = refused(leases, now_ms=1_000)
    assert "over here" in answer.reason
    assert answer.wait_ms == ROUND_MS + 5_000 - 1_000  # when the next base is expected


def test_a_device_whose_speed_nobody_knows_gets_one_microbatch_a_step() -> None:
    assert ask(opened(), microbatch_ms=0).microbatches_a_step == 1
    assert ask(opened(steps=5), microbatch_ms=0).microbatches_a_step == 1


@given(microbatch_ms=st.integers(1, 20_000), way_ms=st.integers(0, 5_000), steps=st.integers(1, 20), left_ms=st.floats(1, 600_000))
def test_a_lease_takes_between_five_and_ten_seconds_where_that_can_be_and_fits_into_what_is_left(
    microbatch_ms: int, way_ms: int, steps: int, left_ms: float
) -> None:
    answer = opened(steps=steps, due_ms=left_ms).ask(KEY, "here", microbatch_ms=microbatch_ms, way_ms=way_ms, now_ms=0.0)
    least_ms = steps * microbatch_ms
    if isinstance(answer, LeaseRefusal):
        assert 1.25 * (least_ms + way_ms) > 0.999 * left_ms or 1.25 * least_ms + way_ms > 0.9 * left_ms
        return
    takes_ms = answer.microbatches_a_step * least_ms
    assert takes_ms + way_ms <= left_ms
    assert takes_ms <= 10_000 or answer.microbatches_a_step == 1
    if least_ms <= 2_500 and left_ms > 1.25 * (7_500 + way_ms) + least_ms:
        assert takes_ms > 5_000 - 1 or answer.microbatches_a_step == max(1, 1000 // steps)


def test_a_device_that_is_too_slow_for_what_is_left_is_told_so_and_when_to_ask_again() -> None:
    leases = opened(due_ms=10_000)
    assert ask(leases, OTHER, microbatch_ms=5_000).microbatches_a_step == 1
    answer = refused(leases, microbatch_ms=9_000)
    assert "too short for this device" in answer.reason
    assert answer.wait_ms == 15_000


def test_a_lease_has_no_more_microbatches_than_a_claim_may_have_or_than_its_samples_leave() -> None:
    assert ask(opened(max_microbatches=7), microbatch_ms=10).microbatches_a_step == 7
    assert ask(opened(max_microbatches=7, steps=3), microbatch_ms=10).microbatches_a_step == 2


def test_whoever_asks_again_gets_the_same_lease_and_once_it_is_back_no_other_on_that_base() -> None:
    leases = opened()
    lease = ask(leases)
    assert ask(leases, microbatch_ms=7, now_ms=500) is lease
    assert leases.back(KEY, BASE, NAME, 1_000) is lease
    assert leases.take(lease, NAME, 1_000)
    assert "is done" in refused(leases, now_ms=1_500).reason
    leases.open(NEXT, now_ms=70_000, due_ms=130_000, next_ms=135_000, max_microbatches=10)
    assert ask(leases, now_ms=70_000) is not lease


def test_what_comes_back_twice_is_known_by_its_bytes_and_something_else_is_refused() -> None:
    leases = opened()
    lease = ask(leases)
    assert leases.take(lease, NAME, 1_000)
    assert leases.back(KEY, BASE, NAME, 1_000) is lease
    assert "came back before, as something else" in refused_back(leases, KEY, 1_000, name=b"m" * 32)
    assert not leases.take(lease, b"m" * 32, 1_000)


def test_what_comes_back_late_is_taken_while_there_is_a_place_for_it() -> None:
    leases = opened(places=2)
    first, second = ask(leases, key_of(1), microbatch_ms=1_000), ask(leases, key_of(2), microbatch_ms=20_000)
    after_ms = first.until_ms + 1
    assert leases.back(first.key, BASE, NAME, after_ms) is first
    third = ask(leases, key_of(3), now_ms=after_ms)
    assert refused_back(leases, first.key, after_ms) == "too late: the lease has expired, and its place is another's"
    assert not leases.take(first, NAME, after_ms)
    after_ms = third.until_ms + 1
    assert leases.take(first, NAME, after_ms)
    assert leases.back(first.key, BASE, NAME, after_ms) is first
    assert "too late" in refused_back(leases, third.key, after_ms)
    assert leases.back(second.key, BASE, NAME, after_ms) is second


def test_where_nothing_was_handed_in_the_same_work_goes_on_and_what_is_leased_is_good_for_longer() -> None:
    leases = opened(due_ms=10_000, max_microbatches=1)
    back, out, silent = (
        ask(leases, key_of(number), microbatch_ms=microbatch_ms) for number, microbatch_ms in ((1, 100), (2, 7_500), (3, 10))
    )
    assert leases.take(back, NAME, 5_000)
    assert (out.until_ms, silent.until_ms) == (10_000, 5_000)
    leases.go_on(now_ms=11_000, due_ms=18_000, next_ms=20_000)
    assert leases.out(11_000) == {out.key}
    assert leases.back(out.key, BASE, NAME, 17_000) is out
    assert leases.ask(out.key, "here", microbatch_ms=7_500, way_ms=0, now_ms=11_000) is out
    assert ask(leases, silent.key, microbatch_ms=10, now_ms=11_000) is not silent
    assert "is done" in refused(leases, back.key, now_ms=11_000).reason
    assert isinstance(ask(leases, key_of(4), now_ms=11_000), Leased)


def test_a_device_that_is_too_slow_for_a_round_gets_one_microbatch_where_nobody_was_in_time() -> None:
    leases = opened(due_ms=10_000)
    assert "too short for this device" in refused(leases, microbatch_ms=20_000).reason
    leases.go_on(now_ms=11_000, due_ms=20_000, next_ms=22_000)
    lease = ask(leases, microbatch_ms=20_000, now_ms=11_000)
    assert lease.microbatches_a_step == 1
    assert leases.back(KEY, BASE, NAME, 31_000) is lease
    leases.open(NEXT, now_ms=40_000, due_ms=50_000, next_ms=52_000, max_microbatches=1000)
    assert "too short for this device" in refused(leases, microbatch_ms=20_000, now_ms=40_000).reason


def test_work_that_goes_on_has_no_more_places_than_before() -> None:
    leases = opened(places=1, due_ms=10_000, max_microbatches=1)
    first = ask(leases, key_of(1), microbatch_ms=10)
    second = ask(leases, key_of(2), microbatch_ms=3_000, now_ms=first.until_ms + 1)
    assert leases.take(first, NAME, 10_001)  # both are over: it came first
    leases.go_on(now_ms=11_000, due_ms=18_000, next_ms=20_000)
    assert leases.out(11_000) == frozenset()
    refused_back(leases, second.key, 11_000)


def test_what_comes_back_for_another_base_or_without_a_lease_is_refused() -> None:
    leases = opened()
    lease = ask(leases, microbatch_ms=1_000)
    for key, base in ((OTHER, BASE), (KEY, NEXT)):
        assert "no lease that this gateway knows" in refused_back(leases, key, 10, base=base)
    leases.open(NEXT, now_ms=70_000, due_ms=130_000, next_ms=135_000, max_microbatches=10)
    assert "too late: the gateway works on a newer base" in refused_back(leases, KEY, 70_001)
    assert not leases.take(lease, NAME, 1_000)


def test_no_lease_outlives_the_time_at_which_all_is_due() -> None:
    leases = opened()
    lease = ask(leases, microbatch_ms=10_000, now_ms=30_000)
    assert lease.until_ms == ROUND_MS
    assert leases.is_awaited(ROUND_MS)
    assert not leases.is_awaited(ROUND_MS + 1)


def test_an_expired_leases_place_goes_to_another_key() -> None:
    leases = opened(places=2)
    first, second = ask(leases, key_of(1)), ask(leases, key_of(2))
    assert leases.take(second, NAME, 0)
    assert "all places" in refused(leases, key_of(3)).reason
    after_ms = first.until_ms + 1
    assert after_ms < ROUND_MS
    assert isinstance(ask(leases, key_of(3), now_ms=after_ms), Leased)
    assert "all places" in refused(leases, key_of(1), now_ms=after_ms).reason
    assert "all places" in refused(leases, key_of(4), now_ms=after_ms).reason  # what came back keeps its place


def test_on_a_base_there_is_no_endless_number_of_leases_however_many_expire() -> None:
    leases, now_ms, number = opened(due_ms=1e8), 0.0, 0
    while isinstance(answer := leases.ask(key_of(number), f"address {number}", microbatch_ms=10, way_ms=0, now_ms=now_ms), Leased):
        number, now_ms = number + 1, answer.until_ms + 1
    assert answer.reason == "all places are taken"
    assert number == 1024
    assert leases.out(now_ms) == frozenset()


def test_a_lease_is_out_until_it_is_back_or_expires() -> None:
    leases = opened()
    first, second = ask(leases, key_of(1)), ask(leases, key_of(2), address="there")
    assert leases.out(0.0) == {first.key, second.key}
    assert leases.take(first, NAME, 0)
    assert leases.out(0.0) == {second.key}
    assert leases.out(second.until_ms + 1) == frozenset()


def test_there_are_never_more_members_than_a_contribution_may_list_beside_the_gateways_own() -> None:
    leases = opened()
    for number in range(40):
        leases.ask(key_of(number), f"address {number}", microbatch_ms=10, way_ms=0, now_ms=0.0)
    assert (
        sum(isinstance(leases.ask(key_of(number), "", microbatch_ms=10, way_ms=0, now_ms=0.0), Leased) for number in range(40))
        == MAX_PLACES
        == 31
    )


def test_one_address_has_so_many_leases_at_a_time_fewer_once_they_expire_and_more_with_those_that_come_back() -> None:
    leases = opened()
    mine = [ask(leases, key_of(number)) for number in range(16)]
    assert "one address" in refused(leases, key_of(16)).reason
    assert isinstance(ask(leases, key_of(17), address="elsewhere"), Leased)
    assert leases.take(mine[0], NAME, 0)
    ask(leases, key_of(16))
    after_ms = max(lease.until_ms for lease in mine) + 1
    assert isinstance(ask(leases, key_of(18), now_ms=after_ms), Leased)  # 16 expired: one at a time is left
    assert "one address" in refused(leases, key_of(19), now_ms=after_ms).reason
    (again,) = (leases.back(key_of(18), BASE, NAME, after_ms),)
    assert isinstance(again, Leased)
    assert leases.take(again, NAME, after_ms)
    ask(leases, key_of(19), now_ms=after_ms)
    ask(leases, key_of(20), now_ms=after_ms)  # two, for one came back


def test_a_base_that_is_over_early_is_nobodys_fault() -> None:
    leases = opened()
    for number in range(16):
        ask(leases, key_of(number))
    leases.open(NEXT, now_ms=1_000, due_ms=ROUND_MS, next_ms=ROUND_MS, max_microbatches=10)
    for number in range(16):
        ask(leases, key_of(number), now_ms=1_000)


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 5), st.sampled_from(["ask", "back", "next", "again"]), st.integers(0, 20_000)),
        max_size=80,
    )
)
def test_whatever_strangers_do_places_and_addresses_are_bounded(events: list[tuple[int, int, str, int]]) -> None:
    leases, now_ms, base = opened(), 0.0, BASE
    for number, address, what, pause_ms in events:
        now_ms += pause_ms
        if what == "next":
            base = key_of(1000 + round(now_ms))
            leases.open(base, now_ms=now_ms, due_ms=now_ms + ROUND_MS, next_ms=now_ms + ROUND_MS, max_microbatches=10)
        elif what == "again":
            leases.go_on(now_ms=now_ms, due_ms=now_ms + ROUND_MS / 10, next_ms=now_ms + ROUND_MS)
        elif what == "ask":
            leases.ask(key_of(number), str(address), microbatch_ms=100, way_ms=100, now_ms=now_ms)
        else:
            lease = leases.back(key_of(number), base, key_of(number), now_ms)
            if isinstance(lease, Leased):
                leases.take(lease, key_of(number), now_ms)
        counted = [each for each in leases._leases.values() if each.given_back is not None or now_ms <= each.until_ms]
        assert len(counted) <= MAX_PLACES
        for known in leases._addresses.values():
            assert 0 <= known.has <= 16
            assert 1 <= known.may_have <= 16
