"""What liars say to their cohort peers: they are left out, or they weigh no more than they may, and no honest member loses its work.

All of it happens to one cohort, one lie after the other; whatever was said, the log holds in the end and the honest have lost nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import pytest

from manta_swarm.network.log_client import HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.cohort.cohort import Accepted
from manta_swarm.protocol.records import InclusionPromise
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from tests.contributions import listing
from tests.faults.cohort_peer import CohortPeer, cohort_peers
from tests.faults.liar import Made, liars
from tests.faults.scene import Scene, cohort_run, ordered_identities
from tests.network.processes import DEADLINE_S

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.faults, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]

HONEST = ("one", "two")
SITE = "site"
MOST_LIARS = 16
KEYS = ordered_identities(2 * MOST_LIARS + len(HONEST))
SMALL, LARGE = iter(KEYS[:MOST_LIARS]), iter(KEYS[-MOST_LIARS:])  # of founders, and of members


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A cohort of honest programs; at its end the log holds, can be computed again, and they have lost nothing."""
    with Scene(tmp_path_factory.mktemp("cohort_peers"), cohort_run()) as scene:
        scene.start_aggregator()
        for name, identity in zip(HONEST, KEYS[MOST_LIARS:], strict=False):
            scene.give_identity(name, identity)
            scene.start_peer(name, SITE)
        scene.wait_until(lambda: are_together(scene), "the honest hand in together")
        yield scene
        scene.end(*HONEST)
        scene.assert_all_agree(*HONEST)


def honest_keys() -> list[str]:
    return [identity.public_key.hex() for identity in KEYS[MOST_LIARS : MOST_LIARS + len(HONEST)]]


def are_together(scene: Scene) -> bool:
    """Return whether one contribution of the newest table has the claims of the honest, and no others."""
    rounds = scene.rounds_together(*honest_keys())
    return bool(rounds) and rounds[-1] == max(scene.tables())


def play(scene: Scene, story: Callable[..., Awaitable[None]], identities: list[Identity]) -> None:
    """Run ``story`` with cohort peers of these keys; then see that the honest are together again, and have lost nothing."""

    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), cohort_peers(scene, SITE, identities, len(HONEST)) as found:
            await story(*found)

    asyncio.run(whole())
    scene.wait_until(lambda: are_together(scene), "the honest hand in together again")
    for name in HONEST:
        scene.counts_again(name)
        status = scene.status(name)
        assert (name, status["samples_lost"], status["dropped"], status["promises_broken"]) == (name, 0, {}, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for is another program's file
        await asyncio.sleep(0.1)


async def honest_are_listed(scene: Scene, base_round: int, *, together: bool) -> None:
    """Return once what the honest did on the base of a round is in tables; check whether one contribution lists both."""

    def listed() -> list[set[str]]:
        rounds = scene.tables().values()
        ones = [one for played in rounds for one in played.listed if one.round == base_round + 1]
        return [{key.hex() for key in one.keys} & set(honest_keys()) for one in ones]

    await until(lambda: set().union(*listed()) == set(honest_keys()))
    assert (set(honest_keys()) in listed()) == together


def base_of(cohort_peer: CohortPeer) -> int:
    assert cohort_peer.base is not None
    return cohort_peer.base.round


# Members.


@pytest.mark.parametrize(("value", "reason"), [(np.nan, "not finite"), (1e15, "much larger")])
def test_a_member_that_gives_no_numbers_or_noise_is_left_out(scene: Scene, value: float, reason: str) -> None:
    async def story(cohort_peer: CohortPeer) -> None:
        await cohort_peer.take_place()
        bad = cohort_peer.liar.vector()
        bad[::7] = value
        assert await cohort_peer.step(0, bad) is bad, "there is no mean for it"
        assert cohort_peer.cohort_session.is_alone
        await until(lambda: any(cohort_peer.key.hex()[:8] in line and reason in line for line in scene.log("one").splitlines()))
        await honest_are_listed(scene, base_of(cohort_peer), together=True)

    play(scene, story, [next(LARGE)])


def test_a_member_that_goes_on_well_and_hands_over_noise_is_left_out(scene: Scene) -> None:
    async def story(cohort_peer: CohortPeer) -> None:
        await cohort_peer.take_place()
        await cohort_peer.steps()
        assert not cohort_peer.cohort_session.is_alone
        noise = cohort_peer.liar.vector(scale=1e6)
        assert await cohort_peer.hand_over(cohort_peer.claim(noise), noise) is None
        await honest_are_listed(scene, base_of(cohort_peer), together=True)

    play(scene, story, [next(LARGE)])


def test_a_member_whose_claim_cannot_stand_is_left_out_and_the_others_are_handed_in(scene: Scene) -> None:
    async def story(cohort_peer: CohortPeer) -> None:
        await cohort_peer.take_place()
        await cohort_peer.steps()
        assert not cohort_peer.cohort_session.is_alone
        vector = cohort_peer.liar.vector()
        too_many = cohort_peer.claim(
            vector,
            microbatches=(cohort_peer.claim().open().microbatches, *(0,) * cohort_peer.liar.num_architectures(cohort_peer.base.round + 1)),
        )
        assert await cohort_peer.hand_over(too_many, vector) is None
        await honest_are_listed(scene, base_of(cohort_peer), together=True)
        assert scene.rounds_with(cohort_peer.key.hex()) == []
        # Nor does it stand alone.
        with pytest.raises(Refused, match="architectures"):
            await cohort_peer.liar.bring(cohort_peer.made([too_many], cohort_peer.liar.vector()).header)

    play(scene, story, [next(LARGE)])


def test_who_does_not_hold_the_token_is_no_cohort_peer(scene: Scene) -> None:
    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), liars(scene) as (liar,):
            for method in ("near.join", "near.give", "near.hand-over"):
                with pytest.raises(Refused, match="prove the cohort's token first"):
                    await liar.node.call(KEYS[MOST_LIARS].public_key, method, b"", timeout_s=DEADLINE_S)
            with pytest.raises(Refused):
                await liar.node.call(KEYS[MOST_LIARS].public_key, "near.hello", bytes(100), timeout_s=DEADLINE_S)

    asyncio.run(whole())


# Founders.


async def as_founder(cohort_peer: CohortPeer) -> list[Made]:
    """Take the honest through all steps as their founder; return the contribution of all, and that of the founder and the first of them."""
    while len((await cohort_peer.take_place()).members) < 1 + len(HONEST):
        pass  # in some rounds one of them is late
    assert cohort_peer.cohort_session.is_founder
    await cohort_peer.steps()
    gathered = await cohort_peer.gather()
    assert len(gathered.claims) == 1 + len(HONEST)
    return [cohort_peer.made(gathered.claims[:count], cohort_peer.liar.vector()) for count in (3, 2)]


async def inclusion_promise_of(cohort_peer: CohortPeer, made: Made) -> Signed[InclusionPromise]:
    """Hand a contribution in; return the log's inclusion promise."""
    handed = await cohort_peer.liar.log.hand_in(made.header, made.groups)
    while handed.signed is None:
        assert handed.status is HandIn.LATER
        handed = await cohort_peer.liar.log.hand_in(made.header, made.groups)
    return handed.signed


def test_a_founder_that_leaves_a_member_out_costs_it_nothing(scene: Scene) -> None:
    async def story(cohort_peer: CohortPeer) -> None:
        _, without = await as_founder(cohort_peer)
        await cohort_peer.cohort_session.tell(
            Accepted(without.header.contribution, await inclusion_promise_of(cohort_peer, without), cohort_peer.liar.vector())
        )
        await honest_are_listed(scene, base_of(cohort_peer), together=False)

    play(scene, story, [next(SMALL)])


def test_a_founder_that_shows_what_the_log_never_signed_costs_nobody_anything(scene: Scene) -> None:
    async def story(cohort_peer: CohortPeer) -> None:
        together, _ = await as_founder(cohort_peer)
        inclusion_promise = InclusionPromise(cohort_peer.liar.run, base_of(cohort_peer) + 1, together.header.contribution.digest)
        await cohort_peer.cohort_session.tell(
            Accepted(together.header.contribution, Signed.sign(inclusion_promise, cohort_peer.liar.identity), None)
        )
        await honest_are_listed(scene, base_of(cohort_peer), together=False)

    play(scene, story, [next(SMALL)])


def test_a_founder_that_hands_all_in_and_says_it_did_not_costs_nobody_anything(scene: Scene) -> None:
    async def story(cohort_peer: CohortPeer) -> None:
        together, _ = await as_founder(cohort_peer)
        await inclusion_promise_of(cohort_peer, together)
        await cohort_peer.cohort_session.tell(None)
        # They hand in alone, too: what the cohort handed in stands, and nobody counts twice.
        await honest_are_listed(scene, base_of(cohort_peer), together=True)
        for played in scene.tables().values():
            keys = [key for one in played.listed for key in one.keys]
            assert len(keys) == len(set(keys))

    play(scene, story, [next(SMALL)])


def test_a_second_founder_gets_nowhere_with_claims_that_name_the_first(scene: Scene) -> None:
    async def story(cohort_peer: CohortPeer, other: CohortPeer) -> None:
        first, second = sorted((cohort_peer, other), key=lambda each: each.key)
        while True:  # in some rounds one of all is late
            places = await asyncio.gather(first.take_place(), second.take_place())
            if (
                first.base == second.base
                and len(first.cohort_session.members) == 2 + len(HONEST)
                and second.cohort_session.founder == first.key
            ):
                break
        assert [place.is_founder for place in places] == [True, False]
        await asyncio.gather(
            *(each.steps(scale=2e-2) for each in (first, second))
        )  # as long as the gradients of the honest, who are but half
        gathered = await first.gather()
        stolen = [signed for signed in gathered.claims if signed.open().key.hex() in honest_keys()]
        assert len(stolen) == len(HONEST)
        own = second.claim(founder=second.key)
        header = listing([*stolen, own], second.liar.identity)
        answer = await second.liar.bring(header)
        assert answer.status == HandIn.WITHOUT
        assert {key.hex() for key in answer.blamed} == set(honest_keys())
        await first.cohort_session.tell(None)
        await honest_are_listed(scene, base_of(first), together=False)

    play(scene, story, [next(SMALL), next(SMALL)])
