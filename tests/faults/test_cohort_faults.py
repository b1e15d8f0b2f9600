"""What happens to members and founders of a cohort, with real programs: one member never costs another its work."""

import signal
from pathlib import Path

import pytest

from manta_swarm.protocol.signing import Identity
from tests.faults.scene import Scene, cohort_run, ordered_identities

pytestmark = [pytest.mark.swarm, pytest.mark.faults]

DYING = ("dies-joining", "dies-in-step", "dies-gathering", "dies-with-header", "dies-untold")
SITE = "site"


def start_cohort(scene: Scene, honest: dict[str, Identity], strange: dict[str, Identity], role: str) -> None:
    """Start a cohort, those who die in this role last, and one peer alone."""
    scene.start_aggregator()
    scene.start_peer("loner")
    for name, identity in {**honest, **strange}.items():
        scene.give_identity(name, identity)
    for name in honest:
        scene.start_peer(name, SITE)
    scene.wait_until(lambda: are_together(scene, honest), "the honest hand in together")
    for name in strange:
        scene.start_strange_peer(name, f"{name}:{role}", SITE)


def are_together(scene: Scene, members: dict[str, Identity]) -> bool:
    """Return whether one contribution of the newest table has the claims of all of these."""
    rounds = scene.rounds_together(*(identity.public_key.hex() for identity in members.values()))
    return bool(rounds) and rounds[-1] == max(scene.tables())


def all_died_as(scene: Scene, role: str) -> None:
    """Return once all who are to die are dead, each at its stage and in this role."""
    for name in DYING:
        assert (name, scene.wait_for_end(name)) == (name, -signal.SIGKILL)
        assert f"dies as {role}" in scene.log(name)


def assert_nobody_lost(scene: Scene, honest: dict[str, Identity]) -> None:
    """Check, once the honest are together again, that they have lost nothing, and that the log holds and replays."""
    scene.wait_until(lambda: are_together(scene, honest), "the honest hand in together again")
    for name in ("loner", *honest):
        scene.counts_again(name)
    scene.end("loner", *honest)
    scene.assert_all_agree("loner", *honest)


def test_founders_that_are_killed_at_any_stage_cost_their_members_nothing(tmp_path: Path) -> None:
    identities = ordered_identities(len(DYING) + 2)
    strange = dict(zip(DYING, identities, strict=False))  # one after the other is the founder
    honest = dict(zip(("one", "two"), identities[len(DYING) :], strict=True))
    with Scene(tmp_path, cohort_run()) as scene:
        start_cohort(scene, honest, strange, "founder")
        all_died_as(scene, "founder")
        assert_nobody_lost(scene, honest)
        # The inclusion promise that the last one took with it is kept, with all members' claims.
        key = strange["dies-untold"].public_key.hex()
        (last,) = [round_ for round_ in scene.rounds_with(key) if round_ == max(scene.rounds_with(key))]
        assert any(len(one.keys) > 1 and bytes.fromhex(key) in one.keys for one in scene.tables()[last].listed)


def test_members_that_are_killed_at_any_stage_cost_the_others_nothing(tmp_path: Path) -> None:
    identities = ordered_identities(len(DYING) + 2)
    honest = dict(zip(("one", "two"), identities, strict=False))
    strange = dict(zip(DYING, identities[2:], strict=True))
    with Scene(tmp_path, cohort_run()) as scene:
        start_cohort(scene, honest, strange, "member")
        all_died_as(scene, "member")
        assert_nobody_lost(scene, honest)


def test_a_cohort_that_is_cut_in_halves_goes_on_as_two_and_is_one_again_afterwards(tmp_path: Path) -> None:
    identities: list[Identity] = []
    for bit in (0, 1):  # of each half
        identities += [one for one in ordered_identities(32) if one.public_key[-1] & 1 == bit][:2]
    members = {f"half-{number}": identity for number, identity in enumerate(identities)}
    left, right = dict(list(members.items())[:2]), dict(list(members.items())[2:])
    with Scene(tmp_path, cohort_run()) as scene:
        scene.start_aggregator()
        scene.start_peer("loner")
        for name, identity in members.items():
            scene.give_identity(name, identity)
            scene.start_strange_peer(name, "half", SITE)
        scene.wait_until(lambda: are_together(scene, members), "all hand in together")
        (tmp_path / "cut").touch()
        scene.wait_until(lambda: are_together(scene, left) and are_together(scene, right), "each half hands in together")
        (tmp_path / "cut").unlink()
        scene.wait_until(lambda: are_together(scene, members), "all hand in together again")
        scene.end("loner", *members)
        scene.assert_all_agree("loner", *members)
