"""Which residual a peer may use, through its contributions' ways and through its restarts."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from manta_swarm.codec.residuals import residual_digest, vector_digest
from manta_swarm.peer.store import KeptResiduals, PeerStore
from manta_swarm.peer.submit.making import ZEROS, Residuals
from manta_swarm.peer.submit.promises import KnownFates
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.listed import RESIDUAL_ROUNDS
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signing import Identity, sha256
from tests.peer.contexts import context_of
from tests.runs import FixedTrainingSpec, manifest_of

PEER = Identity(b"\x0b" * 32)
SPARSE = replace(manifest_of(PEER).exchange, codec="topk-256-4", residual_percent=50)
SIGNED = SignedManifest.sign(manifest_of(PEER, exchange=SPARSE), PEER)
RUN = SIGNED.run
N = 5000
SORTED_AFTER = 6
FIRST, SECOND = sha256(b"\x01"), sha256(b"\x02")  # contributions


def vector(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)


class Life:
    """One start of a peer."""

    def __init__(self, directory: Path) -> None:
        self.store = PeerStore(directory)
        self.residuals = Residuals(
            context_of(
                None, PEER, SIGNED, store=self.store, num_weights=N, training_spec=FixedTrainingSpec(sorts=frozenset({SORTED_AFTER}))
            )
        )


Step = Callable[[Residuals], Awaitable[None]]


def signed(contribution: bytes, left: NDArray[np.float32]) -> Step:
    """Sign a contribution, which leaves this once it is listed."""
    return lambda residuals: residuals.signed(contribution, left)


def known(listed: tuple[bytes, int] | None, *lost: bytes) -> Step:
    """Learn which contribution is listed in which round, and which come to nothing."""
    return lambda residuals: residuals.take(KnownFates(listed, lost, is_all=True))


def left(number: int, round_: int) -> tuple[Step, Step]:
    """Sign a contribution, and learn that it is listed."""
    contribution = sha256(bytes([number]))
    return signed(contribution, vector(number)), known((contribution, round_))


def after(directory: Path, *steps: Step) -> Residuals:
    """Take these steps in one life; return the residuals as the next life finds them."""

    async def live() -> None:
        life = Life(directory)
        for step in steps:
            await step(life.residuals)

    asyncio.run(live())
    return Life(directory).residuals


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("runs/*/residual*"))


def test_no_residual_is_zeros_and_has_no_digest(tmp_path: Path) -> None:
    assert Life(tmp_path).residuals.held(0) == ZEROS
    assert ZEROS.digest == b""


@pytest.mark.parametrize(
    ("steps", "round_", "held"),
    [
        pytest.param([signed(FIRST, vector(1))], 0, None, id="nothing that is left is listed"),
        pytest.param([*left(1, 1), signed(SECOND, vector(2)), known(None, SECOND)], 2, 1, id="what comes to nothing leaves the one before"),
        pytest.param([signed(FIRST, vector(1)), *left(2, 1)], 1, 2, id="of an own and the cohort's the one that is listed counts"),
        pytest.param([*left(1, 1), known((SECOND, 2))], 2, None, id="what is listed and not known here leaves zeros: nobody knows more"),
        pytest.param([*left(1, 1), signed(SECOND, np.zeros(N, np.float32)), known((SECOND, 2))], 2, None, id="zeros have no digest"),
        pytest.param([*left(1, SORTED_AFTER + 1)], SORTED_AFTER + 1 + RESIDUAL_ROUNDS, 1, id="who sits out some rounds"),
        pytest.param([*left(1, SORTED_AFTER + 1)], SORTED_AFTER + 2 + RESIDUAL_ROUNDS, None, id="who sits out many adds nothing any more"),
    ],
)
def test_the_residual_of_the_newest_contribution_that_is_listed_is_used(
    tmp_path: Path, steps: list[Step], round_: int, held: int | None
) -> None:
    found = after(tmp_path, *steps).held(round_)
    assert found == ZEROS if held is None else found.digest == residual_digest(vector(held))


def test_what_a_listed_contribution_leaves_is_used_by_the_next_also_after_restarts(tmp_path: Path) -> None:
    for step in left(1, 1):
        residuals = after(tmp_path, step)
    held = residuals.held(1)
    assert held.digest == residual_digest(vector(1)) == vector_digest(vector(1))
    assert held.values is not None
    assert (held.values == vector(1)).all()


@pytest.mark.parametrize(("listed_in", "newest", "is_held"), [(5, 5, True), (5, 6, False), (6, 6, False), (7, 9, True)])
def test_a_sort_of_the_weights_ends_every_residual_from_before(tmp_path: Path, listed_in: int, newest: int, is_held: bool) -> None:
    assert bool(after(tmp_path, *left(1, listed_in)).held(newest).digest) is is_held


def test_who_does_not_know_which_holds_uses_none(tmp_path: Path) -> None:
    assert after(tmp_path, *left(1, 1), Residuals.forget).held(1) == ZEROS
    assert names(tmp_path) == ["residuals"]


def test_files_of_residuals_that_are_over_go(tmp_path: Path) -> None:
    after(tmp_path, *(step for round_ in range(1, 5) for step in left(round_, round_)))
    assert names(tmp_path) == [f"residual-{residual_digest(vector(4)).hex()[:32]}", "residuals"]


@pytest.mark.parametrize("damage", ["gone", "cut", "other values", "other length"])
def test_a_residual_whose_file_is_not_what_it_was_is_one_of_zeros(tmp_path: Path, damage: str) -> None:
    after(tmp_path, *left(1, 1))
    (path,) = tmp_path.glob("runs/*/residual-*")
    data = path.read_bytes()
    path.write_bytes({"gone": b"", "cut": data[:-1], "other values": data[:-1] + b"\x7f", "other length": data[:-4]}[damage])
    if damage == "gone":
        path.unlink()
    assert Life(tmp_path).residuals.held(1) == ZEROS


def test_damaged_knowledge_of_residuals_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    store = PeerStore(tmp_path)
    store.save_residuals(RUN, KeptResiduals(sha256(b"x"), 3, ((FIRST, sha256(b"y")),)))
    assert store.residuals(RUN).load(KeptResiduals) == KeptResiduals(sha256(b"x"), 3, ((FIRST, sha256(b"y")),))
    (path,) = tmp_path.glob("runs/*/residuals")
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(StorageError, match=r"residuals is damaged .*delete the file"):
        Life(tmp_path)


async def test_what_is_known_last_is_what_is_kept_though_who_waited_for_the_save_before_was_cancelled(tmp_path: Path) -> None:
    life, slow = Life(tmp_path), threading.Event()
    save = life.store.save_residuals

    def waiting(run: bytes, kept: KeptResiduals) -> None:
        if kept.round == 1:
            assert slow.wait(30)
        save(run, kept)

    life.store.save_residuals = waiting  # type: ignore[method-assign]

    await life.residuals.signed(FIRST, vector(1))
    listing = asyncio.create_task(life.residuals.take(KnownFates((FIRST, 1), (), is_all=True)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    listing.cancel()
    sealing = asyncio.create_task(life.residuals.signed(SECOND, vector(2)))
    await asyncio.sleep(0)
    slow.set()
    await asyncio.gather(listing, return_exceptions=True)
    await sealing
    await life.residuals.take(KnownFates((SECOND, 2), (), is_all=True))
    assert Life(tmp_path).residuals.held(2).digest == residual_digest(vector(2))
