"""A volunteer's program that cheats: ``python -m tests.swarm.cheats KIND join ...``. All that it sends is well-formed.

- noise: random gradients of the honest norm, and records of them
- images: another seed's images
- copied: another key's lots
- four: it claims four times the samples that it trained: of four lots it computes one, which stands for the next three, too
- half, tenth: of so many lots nothing is computed; the lot before stands for them
- again: the gradients of its first lots in every round
- poison: honest lots, and a body of noise of the honest norm
- step: honest lots, and noise in the place of what the second of several local steps came to
- dearest: every lot is of the largest architecture
- picks: it does the lots of the largest architecture alone, and leaves all others out
- yes: honest lots; of others' lots it computes nothing, and says that they hold (with --audit)
- accuse: the same, and says that they differ
"""

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from automl.training.lots import Lot, LotResult, Worker, project
from peer.audits.auditor import Auditor, Rest
from peer.audits.messages import Ask, Found
from peer.cohort.founder import FounderSeat
from peer.cohort.seat import Seat
from peer.rounds import handing
from peer.training import workbench
from peer.training.shift import Task
from protocol.audits import DIFFERS, HOLDS

KINDS = ("noise", "images", "copied", "four", "half", "tenth", "again", "poison", "step", "dearest", "picks", "yes", "accuse")
LIARS = ("yes", "accuse")  # those that need --audit
_honest = Worker.train


def _noise_like(values: torch.Tensor) -> torch.Tensor:
    noise = torch.from_numpy(np.random.default_rng().normal(size=values.numel()).astype(np.float32))
    return noise * (values.norm() / noise.norm())


def _noise(worker: Worker, lot: Lot) -> LotResult:
    honest = _honest(worker, lot)
    gradient = _noise_like(honest.gradient)
    return replace(honest, gradient=gradient, projection=project(gradient))


def _images(worker: Worker, lot: Lot) -> LotResult:
    return _honest(worker, replace(lot, run_seed=lot.run_seed + 1))


def _copied(worker: Worker, lot: Lot) -> LotResult:
    return _honest(worker, replace(lot, key=bytes([lot.key[0], *lot.key[:0:-1]])))


def _sparing(every: int, left_out: int) -> Callable[[Worker, Lot], LotResult]:
    """Return what computes all lots but ``left_out`` in each ``every``."""
    last, lots = list[LotResult](), itertools.count()  # over all rounds, each of which begins at lot 0

    def train(worker: Worker, lot: Lot) -> LotResult:
        if next(lots) % every >= left_out or not last:
            last[:] = [_honest(worker, lot)]
        return last[0]

    return train


def _again() -> Callable[[Worker, Lot], LotResult]:
    first: dict[int, LotResult] = {}

    def train(worker: Worker, lot: Lot) -> LotResult:
        if lot.index % 4 not in first:
            first[lot.index % 4] = _honest(worker, lot)
        return first[lot.index % 4]

    return train


def _picking(step: int, most: int, lot_at: Callable[[int], tuple[Lot, int]]) -> Task:
    """Return a task whose lots are those of the schedule that are of the first architecture, the largest, and no others."""

    def picked(index: int) -> tuple[Lot, int]:
        first = next(each for each in itertools.count() if lot_at(each)[1] == 0)
        width = next(each for each in itertools.count(1) if lot_at(first + each)[1] == 0)
        return lot_at(first + width * index)

    return Task(step, most, picked)


def _dearest(step: int, most: int, lot_at: Callable[[int], tuple[Lot, int]]) -> Task:
    """Return a task whose lots are all of the first architecture, the largest, under the indices of others."""
    largest = next(lot for lot, place in map(lot_at, itertools.count()) if place == 0).architecture

    def dearest(index: int) -> tuple[Lot, int]:
        lot, place = lot_at(index)
        return replace(lot, architecture=largest), place

    return Task(step, most, dearest)


class _Liar:
    """Audits without a look."""

    def __init__(self, holds: bool) -> None:
        self._holds = holds

    def load(self, weights: torch.Tensor, teacher: torch.Tensor | None) -> None:
        pass

    async def answer(self, ask: Ask, _rest: Rest) -> Found:
        reason = "" if self._holds else "it says so"
        return Found(HOLDS if self._holds else DIFFERS, ask.lots[ask.place].projection, reason, 1)

    async def close(self) -> None:
        pass


def _lie(holds: bool) -> None:
    async def start(*_: object) -> _Liar:
        return _Liar(holds)

    Auditor.start = start  # type: ignore[method-assign, assignment]


def cheat(kind: str) -> None:
    """Make this process's peer cheat."""
    trains = {"noise": _noise, "images": _images, "copied": _copied, "again": _again()}
    trains |= {"four": _sparing(4, 3), "half": _sparing(2, 1), "tenth": _sparing(10, 1)}
    if kind in trains:
        Worker.train = trains[kind]  # type: ignore[method-assign]
    elif kind == "poison":
        made_of = handing.made_of

        def poisoned(claims: Any, given: Any, *others: Any) -> Any:
            return made_of(claims, _noise_like(torch.from_numpy(given)).numpy(), *others)

        handing.made_of = poisoned
    elif kind == "step":

        async def averaged(_seat: Seat, step: int, vector: Any, _samples: int) -> Any:
            return _noise_like(torch.from_numpy(vector)).numpy() if step == 1 else vector

        for kind_of_seat in (Seat, FounderSeat):  # it is alone in either
            kind_of_seat.average = averaged  # type: ignore[method-assign]
        handing.Handing.may_go_alone = True  # type: ignore[method-assign, assignment]
    elif kind == "dearest":
        workbench.Task = _dearest  # type: ignore[misc, assignment]
    elif kind == "picks":
        workbench.Task = _picking  # type: ignore[misc, assignment]
    elif kind in LIARS:
        _lie(kind == "yes")
    else:
        raise SystemExit(f"no such cheat: {kind}")


if __name__ == "__main__":
    cheat(sys.argv[1])
    from peer.cli import main

    main(sys.argv[2:])
