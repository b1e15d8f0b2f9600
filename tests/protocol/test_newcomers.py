"""An operator that begins with an empty folder takes part once what its old self may have done can't matter any more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.protocol.ballots import NOBODY, Ballot
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.operators import LogPosition, Newcomer
from tests.protocol.operators_world import IDENTITIES, World, run

KEYS = [identity.public_key for identity in IDENTITIES]


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from([(3, 2), (4, 3)]))
def test_whatever_disk_is_lost_no_inclusion_promise_is_and_no_two_histories_begin(seed: int, sizes: tuple[int, int]) -> None:
    n, quorum = sizes
    run(seed, n=n, quorum=quorum, steps=3000, loses_disks=True)


def test_who_lost_its_disk_takes_part_again_and_is_as_good_as_any_other() -> None:
    world = World(5, n=4, quorum=3, crash=0.0, loss=0.0)
    world.go_on(range(4))
    world.operators[0].lose_disk()
    world.go_on(range(4), rounds=7)
    assert world.operators[0].disk.newcomer is None
    world.go_on([0, 1, 2])  # it is needed


def test_a_simulation_in_which_it_took_part_at_once_sees_what_that_breaks() -> None:
    for seed in range(10):
        world = World(seed, n=3, quorum=2, crash=0.0, loss=0.02, loses_disks=True)
        world.takes_part = lambda *_: True
        try:
            for _ in range(3000):
                world.act()
        except AssertionError:
            return
    pytest.fail("nothing broke")


def test_all_others_are_heard_the_log_is_longer_and_nothing_kept_is_left() -> None:
    newcomer = Newcomer()
    for key, position in zip(
        KEYS[1:], (LogPosition(Ballot(7, KEYS[1]), 40, 5), LogPosition(Ballot(9, KEYS[2]), 44, 4), LogPosition(NOBODY, 30, 3)), strict=True
    ):
        assert not newcomer.is_over(KEYS[1:], 10**6, 10**6)
        newcomer = newcomer.hearing(key, position)
    assert newcomer == newcomer.hearing(KEYS[1], LogPosition(Ballot(20, KEYS[1]), 100, 100))  # the first word counts
    assert not newcomer.is_over(KEYS[1:], 44, 9)
    assert not newcomer.is_over(KEYS[1:], 45, 8)
    assert newcomer.is_over(KEYS[1:], 45, 9)
    assert newcomer.promised == Ballot(9, KEYS[2])
    assert unpack(Newcomer, pack(newcomer), max_bytes=4096) == newcomer


def test_a_position_out_of_range_is_none() -> None:
    for size, round_ in ((-1, 0), (0, -1), (2**63, 0)):
        with pytest.raises(ValueError, match="position"):
            LogPosition(NOBODY, size, round_)
