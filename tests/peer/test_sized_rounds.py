"""Model-parallel rounds of peers whose devices differ: what their claims are of, over a network in memory."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.schedule import bound_macs
from manta_swarm.peer.train.sizing import LIGHT, Sizing
from manta_swarm.protocol.cohorts import ALL, size_of
from manta_swarm.protocol.records import Claim
from tests.memory_log import MICROBATCH, SMALL_EXCHANGE, until
from tests.peer.cohort.test_cohort_rounds import met, until_together
from tests.peer.scene import Member, Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")

TOKEN = bytes(range(32))
STEADY = replace(SMALL_EXCHANGE, first_open_ms=300, min_open_ms=300, max_open_ms=300)  # so that a microbatch may take a tenth of a second
RUN = {"algorithm": "model-parallel"}


def sizing_of(scene: Scene, given: int | None = None, **settings: object) -> Sizing:
    return Sizing(scene.log.training_spec.plan, MICROBATCH, given=given, **settings)  # type: ignore[arg-type]


def claims_of(scene: Scene, member: Member) -> list[Claim]:
    """Return the claims that a peer has handed in."""
    claims = [claim.open() for header in scene.log.headers for claim in header.claims]
    return [claim for claim in claims if claim.key == member.key]


async def test_a_slow_device_finds_that_small_networks_are_for_it(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=STEADY, **RUN) as scene:
        member = scene.join(0, sizing=sizing_of(scene), prepare=lambda member: setattr(member.worker, "takes_s", 0.15))
        for round_ in range(1, 30):
            await scene.log.wait_for(1)
            if size_of(claims_of(scene, member)[-1].cohort) == 1:
                break
            scene.log.commit()
            await member.reaches(round_)
        claims = claims_of(scene, member)
        assert claims[0].cohort == "here"
        assert claims[-1].cohort == "here.size-1"
        assert macs(member.worker.microbatches[-1].architecture, TINY) <= bound_macs(TINY, 1)
        await until(lambda: member.status.size.startswith("1 of 4: a microbatch of the next larger networks takes about"))
        assert member.status.cohort == "here"
        scene.log.commit()  # the rules take what it handed in


async def test_cohort_peers_hand_in_together_what_suits_the_slowest_of_them_and_once_it_left_what_suits_the_others(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=SMALL_EXCHANGE, **RUN) as scene:
        scene.log.left_ms = 10_000
        sizes = [ALL, 3, 2]
        members = [scene.join(number, token=TOKEN, sizing=sizing_of(scene, size)) for number, size in enumerate(sizes)]
        await met(*members)
        await until(lambda: all(member.status.size.startswith("2 of 4") for member in members))
        scene.log.commit()
        await until_together(scene, 3)
        assert {claims_of(scene, member)[-1].cohort for member in members} == {"here.size-2"}
        await members[2].leaves()
        await until(lambda: all(member.status.size.startswith("3 of 4") for member in members[:2]))
        scene.log.commit()
        await until_together(scene, 2)
        assert {claims_of(scene, member)[-1].cohort for member in members[:2]} == {"here.size-3"}


async def test_while_light_contributors_are_here_a_peer_trains_small_networks_and_all_of_them_afterwards(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=SMALL_EXCHANGE, **RUN) as scene:
        here = SimpleNamespace(has_helpers=True)
        member = scene.join(0, sizing=sizing_of(scene, helped=here))
        await scene.log.wait_for(1)
        assert size_of(claims_of(scene, member)[0].cohort) == LIGHT
        here.has_helpers = False
        await until(lambda: member.status.size.startswith("4 of 4"))
        for _ in range(2):  # one that was begun before may still come
            scene.log.commit()
            await scene.log.wait_for(1)
        assert claims_of(scene, member)[-1].cohort == "here"
