"""The folder of a run, to be forged: with files changed, or with all of its log sealed again by the operator's key.

What is forged in it is in ``tests.docs.forgeries``.
"""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manta_swarm.aggregator.intake.bodies import Bodies, StoredContribution
from manta_swarm.aggregator.log import credits
from manta_swarm.aggregator.log.log import Log as StoredLog
from manta_swarm.aggregator.log.storage import read_manifest
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.protocol.encoding import decode, encode, pack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.records import Claim, Header, Receipt, Round, entry_of, open_entry
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import Verdict
from tests.contributions import with_contribution
from tests.docs.logs import OPERATOR, THREE, Entries, Log, head_of, tree_of
from tests.docs.whole import NUM_WEIGHTS, WholeRun, audited

SNAPSHOTS = (0, 3, 6)  # of the run in ``prepared``, which has six rounds
RECEIPT = 2  # the entry that the receipt is of
WORK = 8  # the place of this field in a claim
DATABASE, HEAD, MANIFEST = "log.sqlite3", "tree-head.txt", "manifest.cbor"


class NotOfThisRun(Exception):
    """The run has nothing that could be forged so."""


@dataclass
class Folder:
    """The folder of a run, to be changed; beside it lie ``credits.json`` and ``receipt``."""

    path: Path
    operator: Identity
    signed: SignedManifest
    entries: Entries  # as they are before anything is changed
    run: WholeRun | None = None  # where its peers' keys are known: ``audited()``
    asked: dict[str, Any] = field(default_factory=dict)  # what the verifier is asked beside the folder

    @property
    def manifest(self) -> Manifest:
        return self.signed.open()

    @property
    def ends(self) -> list[int]:
        """How many entries the log has with each round's, from that of round 0 on."""
        return [0, *(at + 1 for at, entry in enumerate(self.entries) if is_of(entry, Round))]

    @property
    def last(self) -> int:
        """The last round."""
        return len(self.ends) - 1

    def entries_of(self, round: int) -> Entries:
        """Return the entries of a round, its own last."""
        return self.entries[self.ends[round - 1] : self.ends[round]]

    def before(self, round: int) -> Entries:
        """Return all entries before those of a round."""
        return self.entries[: self.ends[round - 1]]

    def log(self, round: int) -> Log:
        """Return the log before a round."""
        return Log(self.signed, self.before(round))

    def round_with(self, kind: type, least: int = 1) -> int:
        """Return the first round from 2 on that has so many entries of a kind."""
        for round_ in range(2, self.last + 1):
            if sum(is_of(entry, kind) for entry in self.entries_of(round_)) >= least:
                return round_
        raise NotOfThisRun

    def bodies(self, round: int) -> list[StoredContribution]:
        """Return a round's contributions as they are kept, in the log's order."""
        size = body_num_bytes(self.manifest.exchange.codec, NUM_WEIGHTS)
        kept = Bodies(self.path / "bodies", body_bytes=size, keep=99).read(round)
        return sorted(kept, key=lambda one: founder(one.header))

    def snapshots(self) -> list[int]:
        """Return the rounds that have a snapshot."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self.path.glob("snapshots/*.safetensors"))

    def write(self, name: str, data: bytes) -> None:
        """Put a file in the place of one that other folders share."""
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_bytes(data)

    def change(self, name: str, change: Callable[[bytearray], None]) -> None:
        """Change the bytes of a file."""
        data = bytearray((self.path / name).read_bytes())
        change(data)
        self.write(name, bytes(data))

    def execute(self, statement: str, *values: Any) -> None:
        """Change the database."""
        with closing(sqlite3.connect(self.path / DATABASE)) as database:
            database.execute(statement, values)
            database.commit()

    def head(self, size: int, root: bytes, *, run: bytes | None = None, signer: Identity | None = None) -> bytes:
        """Return a signed head."""
        name = origin(run or self.signed.run)
        return sign_tree_head(TreeHead(name, size, root), name, signer or self.operator).encode()

    def seal(self, entries: Sequence[bytes]) -> None:
        """Make these entries the log's: in the database, with all nodes, under heads that the operator signs."""
        tree, nodes = Tree(), list[tuple[int, int, bytes]]()
        for entry in entries:
            nodes += tree.append(leaf_hash(entry))
        with closing(sqlite3.connect(self.path / DATABASE)) as database:
            database.execute("DELETE FROM entries")
            database.execute("DELETE FROM nodes")
            database.executemany("INSERT INTO entries VALUES (?, ?)", list(enumerate(entries)))
            database.executemany("INSERT INTO nodes VALUES (?, ?, ?)", nodes)
            database.execute("UPDATE log SET size = ?, root = ?", (len(entries), tree.root()))
            database.commit()
        self.write(HEAD, self.head(tree.size, tree.root()))
        ends = [0, *(at + 1 for at, entry in enumerate(entries) if is_of(entry, Round))]
        for path in sorted(self.path.glob("snapshots/*.json")):
            round_ = int(path.stem.removeprefix("round-"))
            if round_ >= len(ends):
                path.unlink()
                path.with_suffix(".safetensors").unlink()
                continue
            size, root = ends[round_], tree.root(ends[round_])
            proof = {"ledger_size": size, "ledger_root": root.hex(), "tree_head": self.head(size, root).decode()}
            self.write(f"snapshots/{path.name}", json.dumps(proof).encode())

    def seal_last(self, round: int, change: Callable[[Entries], Entries]) -> None:
        """Make the log end with a round, whose entries are changed."""
        self.seal([*self.before(round), *change(self.entries_of(round))])

    def seal_round(self, round: int, **lies: Any) -> None:
        """Make the log end with a round whose entry says something else."""
        self.seal_last(round, lambda entries: [*entries[:-1], entry_of(replace(round_in(entries), **lies))])

    def seal_contribution(self, change: Callable[[Header], Header]) -> None:
        """Make the log end with its last round, in which THREE's contribution is another one."""
        if self.run is None:
            raise NotOfThisRun

        def changed(entries: Entries) -> Entries:
            at = next(at for at, entry in enumerate(entries) if is_of(entry, Header) and founder(header_in(entry)) == THREE.public_key)
            return [*entries[:at], entry_of(change(header_in(entries[at]))), *entries[at + 1 :]]

        self.seal_last(self.last, changed)


def is_of(entry: bytes, kind: type) -> bool:
    """Return whether this is the entry of a record of a kind, or of a signed one."""
    try:
        record = open_entry(entry)
    except EncodingError:
        return False
    return isinstance(record, kind) or (isinstance(record, Signed) and record.of is kind)


def round_in(entries: Entries) -> Round:
    record = open_entry(entries[-1])
    assert isinstance(record, Round)
    return record


def header_in(entry: bytes) -> Header:
    record = open_entry(entry)
    assert isinstance(record, Header)
    return record


def founder(header: Header) -> bytes:
    return header.contribution.open().founder


@dataclass(frozen=True)
class Forgery:
    """A kind of forged folder, and how it is refused."""

    forge: Callable[[Folder], None]
    rule: str
    where: str
    words: str
    is_sealed: bool  # with the operator's key


FORGERIES: dict[str, Forgery] = {}


def forgery(rule: str, where: str, words: str) -> Callable[[Callable[[Folder], None]], Callable[[Folder], None]]:
    """Add a kind of forged folder, with what the refusal says."""

    def add(forge: Callable[[Folder], None]) -> Callable[[Folder], None]:
        is_sealed = any(each == "head" or each.startswith("seal") for each in forge.__code__.co_names)
        FORGERIES[forge.__name__] = Forgery(forge, rule, where, words, is_sealed)
        return forge

    return add


def prepared(folder: Path) -> WholeRun:
    """Write ``audited()`` to FOLDER/run, with credits and a receipt beside it; return the run."""
    run = audited()
    states = run.states()
    run.write(folder / "run", {round_: states[round_] for round_ in SNAPSHOTS})
    say(folder / "run", OPERATOR)
    return run


def say(folder: Path, operator: Identity) -> None:
    """Write beside a folder what its operator says of credits, and a receipt."""
    (folder.parent / "credits.json").write_text(credits.as_json(verify_directory(folder)))
    with StoredLog.open(folder, operator) as log:
        (folder.parent / "receipt").write_bytes(pack(log.receipt(RECEIPT)))


def copied(original: Path, to: Path, operator: Identity, run: WholeRun | None = None) -> Folder:
    """Return a copy of a folder and of what lies beside it, of which those files are the same that nobody changes in place."""
    shutil.copytree(original, to / original.name, copy_function=os.link, ignore=shutil.ignore_patterns(f"{DATABASE}*"))
    for path in original.glob(f"{DATABASE}*"):
        shutil.copy(path, to / original.name / path.name)
    for name in ("credits.json", "receipt"):
        os.link(original.parent / name, to / name)
    asked = {"receipts": (to / "receipt",), "credits": to / "credits.json"}
    with closing(sqlite3.connect(to / original.name / DATABASE)) as database:
        entries = [entry for (entry,) in database.execute("SELECT bytes FROM entries ORDER BY position")]
    return Folder(to / original.name, operator, read_manifest(original), entries, run, asked)


def receipt_of(entries: Sequence[bytes], index: int, run: bytes, signer: Identity) -> bytes:
    """Return a receipt of an entry."""
    return pack(Receipt(entries[index], index, tuple(tree_of(entries).inclusion_proof(index)), head_of(entries, run, signer)))


def bodies_of(round: int) -> str:
    return f"bodies/round-{round:08d}.bodies"


def snapshot_of(round: int, suffix: str = "safetensors") -> str:
    return f"snapshots/round-{round:08d}.{suffix}"


def with_field(header: Header, place: int, value: Any) -> Header:
    """Return THREE's header with another value in a field of its claim, whatever it is."""
    fields = decode(header.claims[0].payload, max_bytes=2**16)
    assert isinstance(fields, tuple)
    payload = encode((*fields[:place], value, *fields[place + 1 :]))
    claim = Signed(Claim, payload, THREE.sign("claim", payload))
    return with_contribution(replace(header, claims=(claim,)), THREE, claims=(claim.digest,))


def verdicts_in(entries: Entries) -> list[Signed[Verdict]]:
    return [record for record in map(open_entry, entries) if isinstance(record, Signed) and record.of is Verdict]


def rewrite_bodies(folder: Folder, round: int, kept: Sequence[StoredContribution]) -> None:
    """Store these bodies of a round in the place of its own."""
    (folder.path / bodies_of(round)).unlink()
    Bodies(folder.path / "bodies", body_bytes=len(kept[0].body), keep=99).append([(round, one) for one in kept])


def tell(folder: Folder, said: dict[str, Any]) -> None:
    """Ask about these credits."""
    folder.asked["credits"] = folder.path.parent / "told" / "credits.json"
    folder.asked["credits"].parent.mkdir()
    folder.asked["credits"].write_text(json.dumps(said))


def show(folder: Folder, receipt: bytes) -> None:
    """Ask about this receipt."""
    path = folder.path.parent / "shown" / "receipt"
    path.parent.mkdir()
    path.write_bytes(receipt)
    folder.asked["receipts"] = (path,)
