"""The lots of one base at one peer: their gradients summed up, what is claimed of them and handed in, and where the time went."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from automl.space import Architecture
from automl.training import Lot, LotResult
from exact.coding import Body, body_groups, encode, parse
from protocol.encoding import pack
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, Contribution, Header, LotRecord, SignedClaim, SignedContribution
from protocol.rounds import Standing
from protocol.signing import Identity, sha256
from swarm.blobs import Blob

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Pile:
    """Lots trained on one base so far."""

    def __init__(self, num_weights: int, architectures: Sequence[Architecture]) -> None:
        """Begin; ``architectures`` are those that the round asks for, in order."""
        self._sum = torch.zeros(num_weights)
        self._records: list[LotRecord] = []
        self._counts = [0] * len(architectures)
        self._samples = 0
        self._loss_sum = 0.0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def loss(self) -> float:
        """Mean loss over the samples."""
        return self._loss_sum / self._samples

    @property
    def work(self) -> tuple[int, ...]:
        """Lots of each architecture."""
        return tuple(self._counts)

    def add(self, lot: Lot, place: int, result: LotResult) -> None:
        """Add a lot of the architecture at ``place``, its gradient weighted by its samples."""
        self._sum.add_(result.gradient, alpha=result.samples)
        self._loss_sum += result.loss * result.samples
        self._samples += result.samples
        self._counts[place] += 1
        self._records.append(LotRecord(lot.step, lot.index, lot.architecture.text, result.samples, f"{result.loss:.6g}", result.projection))

    def gradient(self) -> Tensor:
        """Return the mean gradient over all samples (float32, one dimension)."""
        return self._sum / float(self._samples)

    def lots_root(self) -> bytes:
        """Return the root over the lots' records."""
        return root([leaf_hash(pack(record)) for record in self._records])


@dataclass(frozen=True, slots=True)
class Made:
    """A contribution of one peer alone."""

    header: Header
    blob: Blob  # of the body, in its groups
    body: Body


def made_of(pile: Pile, base: Standing, identity: Identity, run: bytes, cohort: str, *, codec: str, lot_ms: int) -> Made | None:
    """Return the contribution of lots on a base, signed; None: their mean gradient is no vector of finite numbers."""
    vector = pile.gradient()
    if not bool(vector.isfinite().all()):
        return None
    values, key = vector.numpy(), identity.public_key
    data = encode(codec, values, base.floor)
    blob = Blob.of(body_groups(codec, data, len(values)))
    claim = Claim(
        run=run,
        round=base.round + 1,
        base=base.commit,
        key=key,
        founder=key,
        cohort=cohort,
        local_steps=1,
        work=pile.work,
        lots_root=pile.lots_root(),
        vector=sha256(values.astype("<f4").tobytes()),
        residual=b"",
        lot_ms=lot_ms,
    )
    signed = SignedClaim.sign(claim, identity)
    contribution = Contribution(run, claim.round, claim.base, key, (signed.digest,), blob.root, (b"",))
    return Made(Header(SignedContribution.sign(contribution, identity), (signed,)), blob, parse(codec, data, len(values)))


class ComputeThread:
    """One thread for all heavy work of a peer, so that its event loop stays awake and its device has one user."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute")

    async def run(self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Return what ``work`` returns, called in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Lap:
    """Seconds between the events of a round, for the log."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._seconds: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """Count the time since the last mark as ``name``."""
        now = time.monotonic()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def line(self) -> str:
        """Return what was counted since it was asked for last, and begin anew."""
        line = " ".join(f"{name}_s={seconds:.2f}" for name, seconds in self._seconds.items())
        self._seconds.clear()
        return line
