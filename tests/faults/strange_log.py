"""A real aggregator in which one function is another: ``python strange_log.py WHAT start ...``. It ends without a word, as by ``kill -9``:

dies-open           while a round is open, two inclusion promises of it given and not told yet
dies-closed         when a round is closed, before anything of it is written
dies-unsigned       when a round's entries are on the disk, before the tree head is signed
dies-committed      when a round is committed, before anybody is told
dies-saving         while the state of a committed round is being saved
full                its disk is full from the transaction of its second round on

Or it lives on:

wrong-mean          a value of its third round's mean is another one than the table's, and the state is what follows from that mean
"""

import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.intake.intake import Intake
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import DATABASE
from manta_swarm.aggregator.states import state_keeper
from manta_swarm.aggregator.states.state_keeper import Next, StateKeeper
from manta_swarm.automl.training.update import State, next_state, state_pieces
from manta_swarm.codec.vectors import vector_groups
from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.records import InclusionPromise
from manta_swarm.protocol.signed import Signed

WHAT = sys.argv.pop(1)
WRONG_ROUND = 3
rounds = 0
inclusion_promises: Counter[int] = Counter()


def die(what: str) -> NoReturn:
    """End as by ``kill -9``."""
    print(f"dies {what}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL ends a process")


def dies_open() -> None:
    """Die when the second inclusion promise of a round is signed, once a round was committed."""
    true_inclusion_promise = Intake._inclusion_promise

    def inclusion_promise(self: Intake, round_: int, contribution: bytes) -> Signed[InclusionPromise]:
        inclusion_promises[round_] += 1
        if inclusion_promises[round_] >= 2 and rounds:
            die(f"open round={self._context.ledger.round} inclusion promises={inclusion_promises[round_]}")
        return true_inclusion_promise(self, round_, contribution)

    Intake._inclusion_promise = inclusion_promise  # type: ignore[method-assign]


true_commit, true_store, true_sign = Log.commit, Log._store, Log._sign


def commit(self: Log, entries: Sequence[bytes], *note: Any) -> None:
    """Commit, and die before or after where it is meant to."""
    global rounds
    rounds += 1
    if WHAT == "dies-closed":
        die(f"closed round={self.ledger.round}")
    if WHAT == "full" and rounds == 2:
        print(f"full round={self.ledger.round}", flush=True)
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        written = (self._directory / f"{DATABASE}-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (written, most))  # no file grows beyond it
    true_commit(self, entries, *note)
    if WHAT == "dies-committed":
        die(f"committed round={self.ledger.round}")


def sign(self: Log, *note: Any) -> Any:
    """Sign a tree head, or die before that of the first round."""
    if WHAT == "dies-unsigned" and rounds:
        die(f"unsigned round={self._ledger.round}")
    return true_sign(self, *note)


def save_snapshot(path: Path, state: State, metadata: dict[str, str]) -> None:
    """Save a snapshot, or die in the middle of the first round's."""
    if WHAT == "dies-saving" and rounds:
        path.with_name(f"{path.name}.part").write_bytes(b"half of it")
        die(f"saving round={state.round}")
    true_save(path, state, metadata)


def after_table(self: StateKeeper, *args: Any) -> Next:
    """Return what a table leads to; of the third round something else."""
    after = true_after_table(self, *args)
    if after.state.round != WRONG_ROUND or WHAT != "wrong-mean":
        return after
    assert self.state is not None
    mean = after.table_mean.mean.copy()
    mean[7] += 1
    state = next_state(self.state, torch.from_numpy(mean), self.plan)
    print(f"lies round={state.round}", flush=True)
    return Next(replace(after.table_mean, mean=mean), after.weighed, Blob.of(vector_groups(mean)), state, Blob.of(state_pieces(state)))


true_after_table = StateKeeper.after_table
StateKeeper.after_table = after_table  # type: ignore[method-assign]
true_save = state_keeper.save_snapshot
state_keeper.save_snapshot = save_snapshot
Log.commit = commit  # type: ignore[method-assign]
Log._sign = sign  # type: ignore[method-assign]
if WHAT == "dies-open":
    dies_open()
if __name__ == "__main__":
    main()
