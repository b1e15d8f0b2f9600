"""A log as large as a year's, made up: for ``benchmarks/monitor.py``. Entries, tree and tree heads are in the log's own form; signatures of
peers are not: nobody checks them again who reads a log that its aggregator has checked.
"""

import os
import secrets
import sqlite3
from pathlib import Path

from manta_swarm.aggregator.commit.timeline import Times
from manta_swarm.aggregator.log.contents import STATUS
from manta_swarm.aggregator.log.storage import DATABASE, TREE_HEAD, create_database, write_manifest
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.status import AggregatorStatus, CallCounts, HandedContribution, OpenRound, unix_ms
from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.records import Claim, ClaimStep, Contribution, Header, Round, StepMean, commit_digest, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.disk import make_directory, replace_file

COHORT = 10
_BATCH = 20  # rounds of a transaction
_NOWHERE = bytes(64)  # a signature


class MadeUpRun:
    """The log of a run that never was."""

    def __init__(self, directory: Path, peers: int, rounds: int, claims: int) -> None:
        """Make one with ``peers`` in cohorts of ten, each of whose rounds has ``claims`` of them, in turn; ``grow`` makes the rounds."""
        self._directory = directory
        self._operator = Identity(secrets.token_bytes(32))
        config = RunConfig.usual("classification")
        config = config.model_copy(update={"run": config.run.model_copy(update={"rounds": rounds + 10_000})})
        manifest = config.manifest(self._operator, secrets.token_bytes(32), digits())
        self._signed = SignedManifest.sign(manifest, self._operator)
        self._training_spec = ManifestTrainingSpec(manifest)
        self.keys = sorted(secrets.token_bytes(32) for _ in range(peers))
        self._claims = claims
        self._base = self._signed.run
        self.round = self._first = 0
        make_directory(directory)
        write_manifest(directory, self._signed)
        create_database(directory, self._signed.run, self._operator.public_key)
        self._connection = sqlite3.connect(directory / DATABASE, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._tree = Tree()
        self._times: list[Times] = []
        self._sign()

    def grow(self, rounds: int) -> None:
        """Commit that many rounds."""
        left = rounds
        while left:
            some = min(left, _BATCH)
            self._connection.execute("BEGIN IMMEDIATE")
            for _ in range(some):
                self._commit()
            self._connection.execute("UPDATE log SET size = ?, root = ?", (self._tree.size, self._tree.root()))
            self._connection.execute("COMMIT")
            left -= some
        self._sign()

    def say(self) -> None:
        """Write down what an aggregator of so many peers would say of this moment."""
        now = unix_ms()
        keys = tuple(key.hex() for key in self.keys)
        status = AggregatorStatus(
            run=self._signed.run.hex(),
            name="measured",
            num_rounds=self.round,
            written_at=now,
            started_at=now - 1_000_000,
            pid=os.getpid(),
            open=OpenRound(
                round=self.round + 1,
                stage="open",
                open_ms=1_000,
                opened_at=now - 500,
                deadline_at=now + 500,
                expected=keys[: self._claims],
                handed=tuple(HandedContribution(round=self.round + 1, keys=(key,), body="good") for key in keys[: self._claims // 2]),
            ),
            times=tuple(self._times),
            sent_bytes=now,
            received_bytes=now,
            calls={"body": CallCounts(calls=self.round, in_bytes=now, out_bytes=0)},
            heard=dict.fromkeys(keys, now - 300),
        )
        replace_file(self._directory / STATUS, status.model_dump_json().encode())

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _commit(self) -> None:
        self.round += 1
        first = (self.round - 1) * self._claims % len(self.keys)
        chosen = [self.keys[(first + place) % len(self.keys)] for place in range(self._claims)]
        entries = [self._contribution(sorted(chosen[start : start + COHORT])) for start in range(0, len(chosen), COHORT)]
        entry = entry_of(
            Round(
                run=self._signed.run,
                round=self.round,
                base=self._base,
                first=self._first,
                contributions=len(entries),
                weights=os.urandom(32),
                mean=os.urandom(32),
                state=os.urandom(32),
                thresholds=(),
                min_exponent=-31,
                open_ms=1_000,
            )
        )
        self._base = commit_digest(entry)
        self._first += len(entries) + 1
        self._store([*entries, entry])
        now = unix_ms()
        self._times = [*self._times[-63:], Times(round=self.round, opened_at=now - 1_000, committed_at=now)]

    def _contribution(self, keys: list[bytes]) -> bytes:
        founder, microbatches = keys[0], len(self._training_spec.costs(self.round, "here"))
        signed = [Signed(Claim, self._claim(key, founder, microbatches), _NOWHERE) for key in keys]
        every = (1 << len(keys)) - 1
        contribution = Contribution(
            run=self._signed.run,
            round=self.round,
            base=self._base,
            founder=founder,
            claims=tuple(one.digest for one in signed),
            included=every,
            steps=(StepMean(os.urandom(32), every),),
            body=os.urandom(32),
            residual=b"",
        )
        return entry_of(Header(Signed(Contribution, pack(contribution), _NOWHERE), tuple(signed)))

    def _claim(self, key: bytes, founder: bytes, microbatches: int) -> bytes:
        return pack(
            Claim(
                run=self._signed.run,
                round=self.round,
                base=self._base,
                key=key,
                payout=key,
                founder=founder,
                cohort=f"cohort-{founder[0]}",
                steps=(ClaimStep(0, microbatches - 1, (), os.urandom(32)),),
                work=(1,) * microbatches,
                given=os.urandom(32),
                residual=b"",
                microbatch_ms=80,
            )
        )

    def _store(self, entries: list[bytes]) -> None:
        first = self._tree.size
        nodes = [node for entry in entries for node in self._tree.append(leaf_hash(entry))]
        self._connection.executemany("INSERT INTO entries VALUES (?, ?)", enumerate(entries, first))
        self._connection.executemany("INSERT INTO nodes VALUES (?, ?, ?)", nodes)

    def _sign(self) -> None:
        name = origin(self._signed.run)
        head = TreeHead(name, self._tree.size, self._tree.root())
        replace_file(self._directory / TREE_HEAD, sign_tree_head(head, name, self._operator).encode())

    @property
    def size(self) -> int:
        """Entries."""
        return self._tree.size
