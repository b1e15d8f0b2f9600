"""A stranger announces addresses of others, and leaves: no program of the run dials them again and again, and most of them never."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.scene import Scene, quick_run
from tests.faults.strangers import Target
from tests.faults.strangers.foreign_addresses import OTHER_HOST, Victims, stranger

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),
]  # hivemind's

PROGRAMS = 2  # an aggregator and a peer
PLACES = 4  # of one node that each of them dials at most


def test_addresses_that_a_stranger_announced_are_dialled_once_if_at_all(tmp_path: Path) -> None:
    with Scene(tmp_path, quick_run()) as scene:
        aggregator = scene.start_aggregator()
        scene.start_peer("one")
        scene.counts_again("one")
        target = Target(aggregator["addresses"][0], bytes.fromhex(aggregator["run"]))

        async def come_and_leave() -> bool:
            """Return whether nobody called the stranger in the moment in which it left: whoever does dials all of its addresses once."""
            async with Victims.listening() as victims:
                async with stranger(target, victims.addresses):
                    await asyncio.to_thread(scene.rounds_go_on, 12)  # both programs come to know of it, and look for it
                await asyncio.to_thread(scene.rounds_go_on, 30)  # and again
                assert max(victims.dials.values(), default=0) <= PROGRAMS
                return victims.dials_at(OTHER_HOST) == 0 and len(victims.dials) <= PROGRAMS * PLACES

        assert asyncio.run(come_and_leave()) or asyncio.run(come_and_leave())
        scene.counts_again("one")
        scene.end("one")
        scene.assert_all_agree("one")
