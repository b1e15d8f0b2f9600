"""Whole small runs with bodies and states, made without training: for docs/vectors/runs.json, and as folders of an aggregator for tests.

Nothing in them is random. What peers hand in are vectors of a formula, coded; digests of vectors that no body has are made up.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manta_swarm.aggregator.intake.bodies import Bodies, StoredContribution
from manta_swarm.aggregator.log.log import Log as StoredLog
from manta_swarm.aggregator.states.state_keeper import Next, Snapshots, after_table
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import State, num_moments, state_digest
from manta_swarm.codec.coding import body_groups, encode, parse
from manta_swarm.protocol.listed import Listed, paid_once
from manta_swarm.protocol.manifest import Optimizer
from manta_swarm.protocol.merkle import leaf_hash, root
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Digest, Identity, sha256
from manta_swarm.protocol.table import weights_root
from manta_swarm.protocol.verdicts import Verdict
from tests.docs.ledgers import FOUR, RULES, is_drawn
from tests.docs.logs import ONE, OPERATOR, STRANGER, THREE, TWO, WIDE, Entries, Log, in_digest_order, log_of
from tests.runs import manifest_of

ADAMW = Optimizer("adamw", "0.002", "0.9", "0.999", "0.00000001", "0.01", 30, "0.9", "0.5")
FORMULA = "(i * 40503 mod 65536 - 32768) / 2^20"
NUM_WEIGHTS = 205_696  # of classifier-tiny
SPARSE = replace(WIDE, codec="topk-16-4", first_min_exponent=-28, target_batch=256)


def first_weights() -> NDArray[np.float32]:
    """Return ``FORMULA`` of each place i."""
    return ((np.arange(NUM_WEIGHTS) * 40_503 % 65_536 - 32_768) / 2**20).astype(np.float32)


def learnt(seed: int) -> NDArray[np.float32]:
    """Return a vector of numbers below 2^-7; another seed makes it another one."""
    words = np.arange(1, NUM_WEIGHTS + 1, dtype=np.uint64) * np.uint64(2_654_435_761 * (2 * seed + 1)) % np.uint64(2**32)
    words = (words ^ words >> np.uint64(15)) * np.uint64(2_246_822_519) % np.uint64(2**32)
    return (((words >> np.uint64(8)).astype(np.int64) - 2**23) / 2**30).astype(np.float32)


@dataclass(frozen=True)
class Committed:
    """A round of a run."""

    entries: Entries  # all since the round before, its own entry last
    handed_in: tuple[StoredContribution, ...]  # in the log's order
    after: Next


@dataclass
class WholeRun:
    """A run as it goes on, in memory."""

    log: Log
    state: State
    rounds: list[Committed] = field(default_factory=list)
    last: Entries = field(default_factory=list)  # after the last round's entry

    @property
    def training_spec(self) -> RunTrainingSpec:
        """What its rounds train."""
        spec = self.log.ledger.training_spec
        assert isinstance(spec, RunTrainingSpec)
        return spec

    def made(self, *members: Identity, seed: int = 0, scale: int = 1, **changes: Any) -> StoredContribution:
        """Return what a peer, or a cohort that the first one founds, hands in for the next round, with changes as ``Log.header`` has."""
        ledger = self.log.ledger
        round_ = changes.get("round") or ledger.round + 1
        mask = self.training_spec.coverage(round_, changes.get("cohort", "here"))
        vector = learnt(100 * round_ + seed) * np.float32(scale)
        codec = ledger.manifest.exchange.codec
        body = encode(codec, vector if mask is None else np.where(mask, vector, np.float32(0)), ledger.min_exponent_at(round_ - 1))
        named = {"body": Digest(root(leaf_hash(bytes(group)) for group in body_groups(codec, body, NUM_WEIGHTS))), **changes}
        return StoredContribution(self.log.cohort(members, **named) if len(members) > 1 else self.log.header(*members, **named), body)

    def commit(self, handed_in: Iterable[StoredContribution], verdicts: Iterable[Signed[Verdict]] = (), **lies: Any) -> None:
        """Append the next round of these; ``lies`` take the place of what is true of it."""
        table = sorted(handed_in, key=lambda one: one.header.contribution.open().founder)
        after = self.after(table)
        said = {
            "weights": weights_root(after.weighed),
            "mean": after.mean.root,
            "state": after.blob.root,
            "thresholds": after.table_mean.thresholds,
            "min_exponent": after.table_mean.min_exponent,
        }
        entries = self.log.round([one.header for one in table], verdicts, **{**said, **lies})
        self.log.append(entries)
        self.rounds.append(Committed(entries, tuple(table), after))
        self.state = after.state

    def after(self, table: Sequence[StoredContribution]) -> Next:
        """Return what a table of the next round comes to."""
        ledger = self.log.ledger
        listed: Sequence[Listed] = paid_once([ledger.listed(one.header, ledger.round + 1) for one in table])
        return after_table(
            self.state,
            listed,
            [parse(ledger.manifest.exchange.codec, one.body, NUM_WEIGHTS) for one in table],
            min_exponents=[ledger.min_exponent_at(one.round - 1) for one in listed],
            thresholds=ledger.thresholds,
            min_exponent=ledger.min_exponent_at(ledger.round),
            training_spec=self.training_spec,
        )

    def settle(self, verdicts: Iterable[Signed[Verdict]] = ()) -> None:
        """Append the entries that end an audited run."""
        self.last = [*in_digest_order(verdicts), self.log.settlement()]
        self.log.append(self.last)

    def write(self, folder: Path, states: dict[int, State]) -> None:
        """Write the run as an aggregator keeps it in its folder, with snapshots of these states, by their rounds."""
        signed, manifest = self.log.signed, self.log.ledger.manifest
        snapshots = Snapshots(folder / "snapshots", manifest, Plan.of(manifest), signed.run, keep=99, keep_rounds=99)
        bodies = Bodies(folder / "bodies", body_bytes=len(self.rounds[0].handed_in[0].body), keep=99)
        with StoredLog.create(folder, signed, OPERATOR) as log:
            for number, committed in enumerate((None, *self.rounds)):
                if committed is not None:
                    bodies.append([(number, one) for one in committed.handed_in])
                    log.commit(committed.entries)
                if number in states:
                    snapshots.save(states[number])
                    snapshots.certify(number, log.head, log.tree_head)
            if self.last:
                log.commit(self.last)

    def states(self) -> dict[int, State]:
        """Return each state by its round."""
        return {0: first_state(self.log.ledger.manifest), **{number: one.after.state for number, one in enumerate(self.rounds, 1)}}


def first_state(manifest: Any) -> State:
    """Return the state of round 0."""
    weights = torch.from_numpy(first_weights())
    moments = num_moments(manifest.optimizer, manifest.exchange.local_steps)
    return State(0, weights, tuple(torch.zeros_like(weights) for _ in range(moments)))


def begun(**changes: Any) -> WholeRun:
    """Return a run without rounds, whose manifest has these changes."""
    changes = {"optimizer": ADAMW, "exchange": SPARSE, "name": "whole", **changes}
    state = first_state(manifest_of(OPERATOR, **changes))
    return WholeRun(log_of(initial_state=state_digest(state), **changes), state)


def unaudited() -> WholeRun:
    """Peers alone and a cohort, in three rounds: one names another account, one is late, one is clipped."""
    run = begun(num_rounds=3)
    late = run.made(FOUR, seed=4)
    run.commit([run.made(ONE, seed=1, payout=STRANGER.public_key), run.made(TWO, seed=2), run.made(THREE, seed=3)])
    run.commit([run.made(TWO, ONE, seed=1), run.made(THREE, seed=3), late])
    run.commit([run.made(ONE, seed=1), run.made(TWO, seed=2), run.made(THREE, seed=3, scale=64)])
    return run


def audited() -> WholeRun:
    """Parts of the weights in two local steps, an update that sorts channels, verdicts of one auditor, a settlement."""
    run = begun(
        num_rounds=6,
        algorithm="model-parallel",
        schedule="shrinking",
        exchange=replace(SPARSE, local_steps=2),
        audits=(replace(RULES, audit_percent=100),),  # all of it is drawn, whatever the commits are
    )
    while not run.log.ledger.finished:
        handed_in = [run.made(TWO, ONE, seed=1, cohort="here.size-2"), run.made(THREE, seed=3, cohort="there", payout=STRANGER.public_key)]
        run.commit(handed_in, good_words(run))
    run.settle(good_words(run))
    return run


def good_words(run: WholeRun) -> list[Signed[Verdict]]:
    """Return the auditor's verdicts on all of the newest round but one that was drawn: all of it is good."""
    return [run.log.verdict(peer) for peer in (ONE, THREE) if is_drawn(run.log, peer)]


RUNS: dict[str, Callable[[], WholeRun]] = {"unaudited": unaudited, "audited": audited}
UNKNOWN = sha256(b"unknown")
