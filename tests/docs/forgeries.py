"""Forged folders: each function here changes one thing in the folder of a run that ``docs/verifier.py`` then has to refuse.

``FORGERIES`` has them by their names, with the rule, the place and the words of the refusal. Some change files and no more. In the others
whoever forges has the operator's key, and where it is said the peers' keys too: entries, tree, database and heads fit each other and are
signed, so that only what the entries say can be wrong.
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

from manta_swarm.aggregator.intake.bodies import Bodies, Kept
from manta_swarm.aggregator.log import credits
from manta_swarm.aggregator.log.log import Log as StoredLog
from manta_swarm.aggregator.log.storage import read_manifest
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.protocol.encoding import decode, encode, pack, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.records import Claim, Header, Receipt, Round, entry_of, open_entry
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Settlement, Verdict
from tests.contributions import with_contribution
from tests.docs.logs import ONE, OPERATOR, STRANGER, THREE, Entries, Log, resigned
from tests.docs.whole import NUM_WEIGHTS, UNKNOWN, WholeRun, audited

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

    def bodies(self, round: int) -> list[Kept]:
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
    """Is this the entry of a record of a kind, or of a signed one?"""
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
        is_sealed = any(each.startswith(("seal", "head")) for each in forge.__code__.co_names)
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
    tree, name = Tree(), origin(run)
    for entry in entries:
        tree.append(leaf_hash(entry))
    head = sign_tree_head(TreeHead(name, tree.size, tree.root()), name, signer)
    return pack(Receipt(entries[index], index, tuple(tree.inclusion_proof(index)), head))


def bodies_of(round: int) -> str:
    return f"bodies/round-{round:08d}.bodies"


def snapshot_of(round: int, suffix: str = "safetensors") -> str:
    return f"snapshots/round-{round:08d}.{suffix}"


# Files alone.


@forgery("S2", "manifest.cbor", "a manifest of")
def the_manifest_is_changed(folder: Folder) -> None:
    signed = folder.signed
    folder.write(MANIFEST, pack(replace(signed, payload=signed.payload[:-1] + bytes([signed.payload[-1] ^ 2]))))


@forgery("S2", "entry 3", "signed by the key that has to sign it (a contribution of")
def a_byte_of_a_signature_is_flipped(folder: Folder) -> None:
    at = next(at for at, entry in enumerate(folder.entries) if at > RECEIPT and is_of(entry, Header))
    header = header_in(folder.entries[at])
    signature = bytes([header.contribution.signature[0] ^ 1]) + header.contribution.signature[1:]
    changed = replace(header, contribution=replace(header.contribution, signature=signature))
    folder.execute("UPDATE entries SET bytes = ? WHERE position = ?", entry_of(changed), at)


@forgery("B2", "entry 0", "nothing after them")
def a_byte_follows_an_entry(folder: Folder) -> None:
    folder.execute("UPDATE entries SET bytes = ? WHERE position = 0", folder.entries[0] + b"\0")


@forgery("T3", "log.sqlite3", "an entry is missing")
def an_entry_is_missing(folder: Folder) -> None:
    folder.execute("DELETE FROM entries WHERE position = 4")


@forgery("T3", "the tree", "the database says 25 entries, and has 19")
def the_last_entries_are_missing(folder: Folder) -> None:
    folder.execute("DELETE FROM entries WHERE position >= ?", len(folder.before(folder.last)))


@forgery("T3", "the tree", "the database says another root")
def a_mean_is_another_than_the_one_that_was_signed(folder: Folder) -> None:
    *_, last = folder.entries_of(folder.last)
    end = folder.ends[-1] - 1
    folder.execute("DELETE FROM entries WHERE position > ?", end)
    folder.execute("UPDATE log SET size = ?", end + 1)
    folder.execute("UPDATE entries SET bytes = ? WHERE position = ?", last.replace(round_in([last]).mean, UNKNOWN), end)


@forgery("T4", "node 1/0", "another hash")
def a_stored_node_is_another(folder: Folder) -> None:
    folder.execute("UPDATE nodes SET hash = zeroblob(32) WHERE level = 1 AND position = 0")


@forgery("T4", "the tree", "46 stored nodes of 47")
def a_stored_node_is_missing(folder: Folder) -> None:
    folder.execute("DELETE FROM nodes WHERE level = 2 AND position = 1")


@forgery("T3", "the tree", "of another run or operator")
def the_database_is_another_operators(folder: Folder) -> None:
    folder.execute("UPDATE log SET operator = ?", STRANGER.public_key)


@forgery("S2", "tree-head.txt", "a tree head")
def a_tree_head_says_another_size(folder: Folder) -> None:
    size = len(folder.entries)
    folder.write(HEAD, (folder.path / HEAD).read_bytes().replace(b"\n%d\n" % size, b"\n%d\n" % (size - 1)))


@forgery("T6", "snapshots/round-00000003.json", "the size or the root beside it is another")
def the_size_beside_a_snapshot_is_another(folder: Folder) -> None:
    name = snapshot_of(folder.snapshots()[1], "json")
    folder.write(name, json.dumps({**json.loads((folder.path / name).read_bytes()), "ledger_size": 1}).encode())


@forgery("T6", "snapshots/round-00000006.json", "it has not come to round 6")
def a_snapshot_is_proved_by_an_older_head(folder: Folder) -> None:
    _, older, *_, last = folder.snapshots()
    folder.write(snapshot_of(last, "json"), (folder.path / snapshot_of(older, "json")).read_bytes())


@forgery("D1", "round 2", "of 1 of 2 contributions it is missing")
def a_body_is_damaged(folder: Folder) -> None:
    folder.change(bodies_of(2), lambda data: data.__setitem__(-40, data[-40] ^ 1))


@forgery("D3", "round 6", "of 5 of 6 rounds")
def the_bodies_of_a_round_are_missing(folder: Folder) -> None:
    (folder.path / bodies_of(folder.last - 2)).unlink()


@forgery("D1", "round 2", "another root than the contribution of")
def a_body_is_that_of_another_contribution(folder: Folder) -> None:
    round_ = folder.round_with(Header, 2)
    one, other, *rest = folder.bodies(round_)
    rewrite_bodies(folder, round_, [replace(one, body=other.body), replace(other, body=one.body), *rest])


@forgery("D2", "round 2", "an exponent beyond its range")
def a_body_has_an_exponent_that_there_is_not(folder: Folder) -> None:
    one, *rest = folder.bodies(2)
    rewrite_bodies(folder, 2, [replace(one, body=b"\x18" + one.body[1:]), *rest])


@forgery("D1", "round 2", "claims beside it are others than the log has")
def a_claim_beside_a_body_is_another(folder: Folder) -> None:
    one, *rest = folder.bodies(2)
    other = folder.bodies(3)[0].header
    rewrite_bodies(folder, 2, [replace(one, header=replace(one.header, claims=other.claims)), *rest])


@forgery("U1", "snapshots/round-00000003.safetensors", "another digest")
def a_weight_in_a_snapshot_is_another(folder: Folder) -> None:
    folder.change(snapshot_of(folder.snapshots()[1]), lambda data: data.__setitem__(-2, data[-2] ^ 1))


@forgery("U1", "snapshots/round-00000006.safetensors", "it is of round 3")
def a_snapshot_is_that_of_another_round(folder: Folder) -> None:
    _, older, *_, last = folder.snapshots()
    folder.write(snapshot_of(last), (folder.path / snapshot_of(older)).read_bytes())


@forgery("U1", "snapshots/round-00000003.safetensors", "bytes that are of no vector")
def bytes_follow_a_snapshot(folder: Folder) -> None:
    folder.change(snapshot_of(folder.snapshots()[1]), lambda data: data.extend(b"more"))


@forgery("U3", "round 6", "3 of 6 states were computed")
def the_first_state_is_missing(folder: Folder) -> None:
    for suffix in ("safetensors", "json"):
        (folder.path / snapshot_of(0, suffix)).unlink()


@forgery("C1", "credits.json", "has 2474, it says 12473")
def a_credit_is_too_high(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    said["accounts"][0]["paid"] += 9999
    tell(folder, said)


@forgery("C1", "credits.json", "has 500, it says 0")
def an_account_is_left_out_of_the_credits(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    least = min((account for account in said["accounts"] if account["paid"]), key=lambda account: account["paid"])
    tell(folder, {**said, "accounts": [account for account in said["accounts"] if account is not least]})


@forgery("C1", "credits.json", "is proven")
def whether_a_key_is_proven_is_said_wrongly(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    peer = said["accounts"][0]["peers"][0]
    peer["is_proven"] = not peer["is_proven"]
    tell(folder, said)


@forgery("T2", "receipt", "0 of 1 operators signed it")
def a_receipt_is_signed_by_another_key(folder: Folder) -> None:
    show(folder, receipt_of(folder.entries, RECEIPT, folder.signed.run, STRANGER))


@forgery("T5", "receipt", "a receipt")
def a_receipt_is_of_another_entry(folder: Folder) -> None:
    receipt = unpack(Receipt, (folder.path.parent / "receipt").read_bytes(), max_bytes=2**17)
    show(folder, pack(replace(receipt, entry=folder.entries[RECEIPT + 1])))


# With the operator's key.


@forgery("E1", "entry 0", "of another run")
def the_manifest_is_another_that_the_operator_signed(folder: Folder) -> None:
    signed = SignedManifest.sign(replace(folder.manifest, reward_pool=999), folder.operator)
    folder.write(MANIFEST, pack(signed))
    folder.execute("UPDATE log SET run = ?", signed.run)
    folder.seal(folder.entries)


@forgery("T2", "tree-head.txt", "0 of 1 operators signed it")
def a_tree_head_is_signed_by_another_key(folder: Folder) -> None:
    tree = tree_of(folder.entries)
    folder.write(HEAD, folder.head(tree.size, tree.root(), signer=STRANGER))


@forgery("T2", "tree-head.txt", "it is of manta/00000000")
def a_tree_head_is_of_another_run(folder: Folder) -> None:
    tree = tree_of(folder.entries)
    folder.write(HEAD, folder.head(tree.size, tree.root(), run=bytes(32)))


@forgery("T3", "tree-head.txt", "its root is another than that of the first 25 entries")
def a_tree_head_has_another_root(folder: Folder) -> None:
    folder.write(HEAD, folder.head(len(folder.entries), UNKNOWN))


@forgery("T3", "tree-head.txt", "it is of 26 entries, there are 25")
def a_tree_head_is_of_more_entries(folder: Folder) -> None:
    folder.write(HEAD, folder.head(len(folder.entries) + 1, UNKNOWN))


@forgery("T3", "the tree", "24 of 25 entries are under the signed head")
def a_tree_head_is_of_fewer_entries(folder: Folder) -> None:
    tree = tree_of(folder.entries[:-1])
    folder.write(HEAD, folder.head(tree.size, tree.root()))


@forgery("T3", "receipt", "another entry than the log has")
def a_receipt_is_of_a_second_history(folder: Folder) -> None:
    folder.seal_round(folder.last, open_ms=folder.manifest.exchange.max_open_ms)
    show(folder, receipt_of(folder.entries, folder.ends[-1] - 1, folder.signed.run, folder.operator))


@forgery("V1", "round 6", "they are 65535, 43690")
def the_weights_of_a_mean_are_others(folder: Folder) -> None:
    folder.seal_round(folder.last, weights=UNKNOWN)


@forgery("V2", "round 6", "the mean is that of the bodies (its root is")
def a_mean_is_another(folder: Folder) -> None:
    folder.seal_round(folder.last, mean=round_in(folder.entries_of(folder.last - 1)).mean)


@forgery("V3", "round 6", "the min exponent is -25, the entry says -24")
def a_min_exponent_is_another(folder: Folder) -> None:
    before, said = (round_in(folder.entries_of(round_)).min_exponent for round_ in (folder.last - 1, folder.last))
    folder.seal_round(folder.last, min_exponent=before if said != before else before + 1)


@forgery("V3", "round 6", "other thresholds")
def a_threshold_is_another(folder: Folder) -> None:
    thresholds = round_in(folder.entries_of(folder.last)).thresholds
    folder.seal_round(folder.last, thresholds=(replace(thresholds[0], norm=thresholds[0].norm * 2), *thresholds[1:]))


@forgery("U2", "round 6", "follows from the state and the mean (its digest is")
def a_state_is_that_of_the_round_before(folder: Folder) -> None:
    folder.seal_round(folder.last, state=round_in(folder.entries_of(folder.last - 1)).state)


@forgery("U2", "round 4", "follows from the state and the mean (its digest is")
def a_state_is_another_and_all_that_comes_after_it_follows_from_it(folder: Folder) -> None:
    """The peers go on from it, by their own keys."""
    if folder.run is None:
        raise NotOfThisRun
    run = WholeRun(folder.log(4), folder.run.rounds[2].after.state, folder.run.rounds[:3])
    table = folder.run.rounds[3].handed_in
    run.state = replace(run.state, moments=tuple(moment * 2 for moment in run.state.moments))
    run.commit(table, verdicts_in(folder.entries_of(4)))
    run.commit([run.made(THREE, seed=3, cohort="there")])
    folder.seal(run.log.entries)
    for round_ in (4, 5):
        rewrite_bodies(folder, round_, run.rounds[round_ - 1].handed_in)


@forgery("D1", "round 6", "another root than the contribution of")
def a_contribution_names_the_body_of_another_one(folder: Folder) -> None:
    """THREE signs it."""
    if folder.run is None:
        raise NotOfThisRun
    last, log = folder.last, folder.log(folder.last)
    kept = folder.bodies(last)
    headers = [each.header for each in kept]
    body = next(header for header in headers if founder(header) != THREE.public_key).contribution.open().body
    lying = [with_contribution(header, THREE, body=body) if founder(header) == THREE.public_key else header for header in headers]
    said = round_in(folder.entries_of(last))
    entries = log.round(lying, verdicts_in(folder.entries_of(last)), mean=said.mean, state=said.state, thresholds=said.thresholds)
    folder.seal([*log.entries, *entries])
    rewrite_bodies(folder, last, [replace(each, header=header) for each, header in zip(kept, lying, strict=True)])


@forgery("E1", "entry 19", "known kind, and of this run (bonus)")
def an_entry_is_of_an_unknown_kind(folder: Folder) -> None:
    folder.seal([*folder.before(folder.last), encode(("bonus", b""))])


@forgery("E13", "entry 9", "not a commit of this log")
def a_verdict_is_left_out(folder: Folder) -> None:
    """The operator says nothing of it in the round after it, either; all that comes later names another commit."""
    round_ = folder.round_with(Verdict)
    entries = folder.entries_of(round_)
    said = round_in(entries)
    rest = [entry for entry in folder.entries[folder.ends[round_] : folder.ends[-1]] if not is_of(entry, Verdict)]
    folder.seal([*folder.before(round_), *entries[1:-1], entry_of(replace(said, first=said.first - 1)), *rest])


@forgery("E9", "entry 7", "an auditor judges a contribution once")
def a_verdict_stands_twice(folder: Folder) -> None:
    round_ = folder.round_with(Verdict)
    folder.seal([*folder.before(round_), folder.entries_of(round_)[0], *folder.entries_of(round_)])


@forgery("E7", "entry 6", "a verdict is a named auditor's")
def a_verdict_is_by_another_auditor(folder: Folder) -> None:
    round_ = folder.round_with(Verdict)
    (verdict, *_) = verdicts_in(folder.entries_of(round_))
    said = replace(verdict.open(), auditor=STRANGER.public_key, by=STRANGER.public_key)
    folder.seal([*folder.before(round_), entry_of(Signed.sign(said, STRANGER))])


@forgery("E6", "entry 3", "not an operator's")
def a_revocation_is_signed_by_another_operator(folder: Folder) -> None:
    folder.seal([*folder.before(2), Log(folder.signed).revocation(ONE, operator=STRANGER), *folder.entries_of(2)])


@forgery("E25", "entry 4", "strictly sorted by founder")
def contributions_stand_in_another_order(folder: Folder) -> None:
    *before, one, other, last = folder.entries_of(round_ := folder.round_with(Header, 2))
    folder.seal([*folder.before(round_), *before, other, one, last])


@forgery("E27", "entry 4", "the places of the contributions right before it")
def a_contribution_is_dropped(folder: Folder) -> None:
    *before, one, _, last = folder.entries_of(round_ := folder.round_with(Header, 2))
    folder.seal([*folder.before(round_), *before, one, last])


@forgery("E23", "entry 21", "its work on this base is in the log")
def a_claim_is_counted_twice(folder: Folder) -> None:
    """The work of THREE in the round before."""
    folder.seal_contribution(lambda header: of_round(folder, folder.last - 1))


@forgery("E13", "entry 21", "too old")
def a_contribution_is_older_than_allowed(folder: Folder) -> None:
    folder.seal_contribution(lambda header: of_round(folder, 1))


@forgery("E13", "entry 21", "not a commit of this log")
def a_contribution_is_on_another_base(folder: Folder) -> None:
    folder.seal_contribution(lambda header: with_contribution(resigned(header, THREE, base=UNKNOWN), THREE, base=UNKNOWN))


@forgery("E20", "entry 21", "other architectures than its indices are of")
def a_claim_says_more_work_than_its_indices(folder: Folder) -> None:
    folder.seal_contribution(lambda header: with_field(header, WORK, (9,)))


@forgery("E15", "entry 21", "exactly the claims that come with it")
def a_claim_is_changed_after_it_was_listed(folder: Folder) -> None:
    folder.seal_contribution(lambda header: replace(header, claims=resigned(header, THREE, payout=ONE.public_key).claims))


@forgery("S2", "entry 21", "a claim of")
def a_claim_is_signed_by_another_key(folder: Folder) -> None:
    folder.seal_contribution(lambda header: with_signer(header, STRANGER))


@forgery("E26", "entry 22", "a round follows the one before it")
def a_round_names_another_base(folder: Folder) -> None:
    folder.seal_round(folder.last, base=UNKNOWN)


@forgery("E28", "entry 22", "by at most one exponent")
def a_min_exponent_moves_too_far(folder: Folder) -> None:
    folder.seal_round(folder.last, min_exponent=round_in(folder.entries_of(folder.last - 1)).min_exponent + 2)


@forgery("E29", "entry 22", "within the manifest's bounds")
def a_round_is_open_for_too_long(folder: Folder) -> None:
    folder.seal_round(folder.last, open_ms=folder.manifest.exchange.max_open_ms + 1)


@forgery("E2", "entry 14", "before the last round")
def a_settlement_comes_too_early(folder: Folder) -> None:
    before = folder.before(folder.last - 1)
    folder.seal([*before, entry_of(Settlement(folder.signed.run, sha256(before[-1])))])


@forgery("E30", "entry 24", "a settlement is on the last round's commit")
def a_settlement_is_on_another_commit(folder: Folder) -> None:
    if not is_of(folder.entries[-1], Settlement):
        raise NotOfThisRun
    folder.seal([*folder.entries[:-1], entry_of(Settlement(folder.signed.run, UNKNOWN))])


@forgery("E2", "entry 25", "the run is over")
def an_entry_follows_the_end(folder: Folder) -> None:
    folder.seal([*folder.entries, folder.entries[-1]])


@forgery("E2", "entry 22", "in the middle of a round")
def the_log_ends_before_a_rounds_entry(folder: Folder) -> None:
    folder.seal_last(folder.last, lambda entries: entries[:-1])


def with_signer(header: Header, signer: Identity) -> Header:
    """Return the header with a claim that another key signed."""
    return resigned(header, signer, payout=STRANGER.public_key)


def with_field(header: Header, place: int, value: Any) -> Header:
    """Return THREE's header with another value in a field of its claim, whatever it is."""
    fields = decode(header.claims[0].payload, max_bytes=2**16)
    assert isinstance(fields, tuple)
    payload = encode((*fields[:place], value, *fields[place + 1 :]))
    claim = Signed(Claim, payload, THREE.sign("claim", payload))
    return with_contribution(replace(header, claims=(claim,)), THREE, claims=(claim.digest,))


def of_round(folder: Folder, round: int) -> Header:
    """Return THREE's contribution to a round."""
    return next(one.header for one in folder.bodies(round) if founder(one.header) == THREE.public_key)


def verdicts_in(entries: Entries) -> list[Signed[Verdict]]:
    return [record for record in map(open_entry, entries) if isinstance(record, Signed) and record.of is Verdict]


def tree_of(entries: Sequence[bytes]) -> Tree:
    tree = Tree()
    for entry in entries:
        tree.append(leaf_hash(entry))
    return tree


def rewrite_bodies(folder: Folder, round: int, kept: Sequence[Kept]) -> None:
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
