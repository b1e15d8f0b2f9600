"""Measuring the model on a peer's own held-out images: what is found, how often, and who is told."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.data.image_folder import part_of
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.evaluation.held_out import evaluate
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import usual
from manta_swarm.automl.training.update import initial_state
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.peer.features.private import plugin as module
from manta_swarm.peer.features.private.plugin import Measuring
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.private import MAX_SIGNED_BYTES, Measure
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.peer.contexts import context_of
from tests.runs import manifest_of

OPERATOR, PEER = Identity(b"o" * 32), Identity(b"p" * 32)
SIGNED = SignedManifest.sign(manifest_of(OPERATOR), OPERATOR)
STATE = initial_state(Plan("classifier-tiny", "sandwich", "data-parallel", usual("classification").optimizer, 3, 0))


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread()
    yield thread
    thread.close()


@pytest.fixture
def live_status(tmp_path: Path) -> LiveStatus:
    return LiveStatus(PeerStore(tmp_path / "peer"), PeerStatus("", "", SIGNED.run.hex(), "test", "here", "cpu", 3))


class Operator:
    """Hears what it is told; may be away."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.told: list[Signed[Measure]] = []

    async def listen(self) -> "Operator":
        """Answer from now on."""

        async def on_measure(caller: PublicKey, request: bytes) -> bytes:
            assert caller == PEER.public_key
            self.told.append(unpack(Signed[Measure], request, max_bytes=MAX_SIGNED_BYTES))
            return b""

        await self.network.endpoint(PublicKey(OPERATOR.public_key)).serve("measure", on_measure)
        return self


def few() -> ImageDataset:
    return part_of(digits(), np.arange(64), np.arange(100, 140))


def measuring(
    operator: Operator, compute: ComputeThread, live_status: LiveStatus, dataset: ImageDataset, *, is_told: bool = True
) -> Measuring:
    context = context_of(operator.network.endpoint(PublicKey(PEER.public_key)), PEER, SIGNED, live_status, compute)
    return Measuring(context, dataset, is_told=is_told)


async def test_what_is_told_is_what_an_evaluation_on_the_own_images_finds(compute: ComputeThread, live_status: LiveStatus) -> None:
    operator, dataset = await Operator().listen(), few()
    await measuring(operator, compute, live_status, dataset).measure(2, STATE.parameters)
    (measure,) = (signed.open() for signed in operator.told)
    supernet = build(TINY)
    supernet.load(STATE.parameters)
    largest, smallest = (each["accuracy"] for each in evaluate(supernet, dataset, [TINY.largest(), TINY.smallest()]))
    assert (measure.run, measure.key, measure.round, measure.samples) == (SIGNED.run, PEER.public_key, 2, 40)
    assert (measure.largest / 40, measure.smallest / 40) == pytest.approx((largest, smallest))
    status = live_status.status
    assert (status.own_round, status.own_samples, status.own_largest, status.own_smallest) == (2, 40, largest, smallest)


async def test_it_rests_in_between_but_not_before_the_last_state(compute: ComputeThread, live_status: LiveStatus) -> None:
    operator = await Operator().listen()
    own = measuring(operator, compute, live_status, few())
    await own.measure(0, STATE.parameters, is_last=True)  # the first state says nothing
    for round_ in (1, 2):
        await own.measure(round_, STATE.parameters)
    for _ in range(2):
        await own.measure(3, STATE.parameters, is_last=True)
    assert [signed.open().round for signed in operator.told] == [1, 3]


async def test_without_a_rest_every_state_is_measured(
    compute: ComputeThread, live_status: LiveStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = await Operator().listen()
    monkeypatch.setattr(module, "SHARE", 1)
    own = measuring(operator, compute, live_status, few())
    for round_ in (1, 2):
        await own.measure(round_, STATE.parameters)
    assert [signed.open().round for signed in operator.told] == [1, 2]


async def test_who_does_not_want_it_told_has_it_in_the_status_only(compute: ComputeThread, live_status: LiveStatus) -> None:
    operator = await Operator().listen()
    await measuring(operator, compute, live_status, few(), is_told=False).measure(1, STATE.parameters)
    assert (operator.told, live_status.status.own_round) == ([], 1)


async def test_an_operator_who_is_away_stops_nothing_and_nothing_held_out_is_nothing_measured(
    compute: ComputeThread, live_status: LiveStatus
) -> None:
    operator = Operator()
    await measuring(operator, compute, live_status, few()).measure(1, STATE.parameters)
    assert live_status.status.own_round == 1
    empty = replace(few(), held_out_images=few().held_out_images[:0], held_out_labels=few().held_out_labels[:0])
    await measuring(operator, compute, live_status, empty).measure(2, STATE.parameters)
    assert live_status.status.own_round == 1
