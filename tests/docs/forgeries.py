"""Forged folders: each function here changes one thing in the folder of a whole run that ``docs/verifier.py`` then has to refuse.

``FORGERIES`` has them by their names, with the rule, the place and the words of the refusal. Some change files and no more. In the others
whoever forges has the operator's key, and where it is said the peers' keys too: entries, tree, database and heads fit each other and are
signed, so that only what the entries say can be wrong.
"""

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manta_swarm.aggregator.intake.bodies import Bodies, Kept
from manta_swarm.aggregator.log import credits
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.protocol.encoding import decode, encode, pack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.records import Claim, Header, Receipt, Round, entry_of, open_entry
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Settlement, Verdict
from tests.contributions import with_contribution
from tests.docs.logs import AUDITORS, ONE, OPERATOR, STRANGER, THREE, Entries, Log, resigned
from tests.docs.whole import UNKNOWN, WholeRun, audited

LAST = 6  # round of the run
SNAPSHOTS = (0, 3, LAST)
WORK = 8  # the place of this field in a claim
DATABASE, HEAD, MANIFEST = "log.sqlite3", "tree-head.txt", "manifest.cbor"


@dataclass
class Folder:
    """The folder of ``audited()``, to be changed; ``asked`` is what the verifier is asked beside it."""

    path: Path
    run: WholeRun
    asked: dict[str, Any] = field(default_factory=dict)

    def entries_of(self, round: int) -> Entries:
        """Return the entries of a round, its own last."""
        return list(self.run.rounds[round - 1].entries)

    def before(self, round: int) -> Entries:
        """Return all entries before those of a round."""
        return [entry for one in self.run.rounds[: round - 1] for entry in one.entries]

    def log(self, round: int) -> Log:
        """Return the log before a round."""
        return Log(self.run.log.signed, self.before(round))

    def place(self, round: int, kind: type) -> int:
        """Return where in a round's entries the first of a kind stands."""
        return next(at for at, entry in enumerate(self.entries_of(round)) if is_of(entry, kind))

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

    def head(self, size: int, root: bytes, *, run: bytes | None = None, signer: Identity = OPERATOR) -> bytes:
        """Return a signed head."""
        name = origin(run or self.run.log.signed.run)
        return sign_tree_head(TreeHead(name, size, root), name, signer).encode()

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

    def seal_contribution(self, change: Callable[[Header], Header], round: int = LAST) -> None:
        """Make the log end with a round in which THREE's contribution is another one."""

        def changed(entries: Entries) -> Entries:
            at = next(at for at, entry in enumerate(entries) if is_of(entry, Header) and founder_of(entry) == THREE.public_key)
            header = open_entry(entries[at])
            assert isinstance(header, Header)
            return [*entries[:at], entry_of(change(header)), *entries[at + 1 :]]

        self.seal_last(round, changed)


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


def founder_of(entry: bytes) -> bytes:
    header = open_entry(entry)
    assert isinstance(header, Header)
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
    """Write the folder that all begin as, with credits and a receipt beside it; return its run."""
    run = audited()
    states = run.states()
    run.write(folder / "run", {round_: states[round_] for round_ in SNAPSHOTS})
    (folder / "credits.json").write_text(credits.as_json(verify_directory(folder / "run")))
    (folder / "receipt").write_bytes(receipt_of(run.log.entries, 2, run.log.signed.run))
    return run


def receipt_of(entries: Sequence[bytes], index: int, run: bytes, *, signer: Identity = OPERATOR) -> bytes:
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
    signed = folder.run.log.signed
    folder.write(MANIFEST, pack(replace(signed, payload=signed.payload.replace(b"digits", b"difits"))))


@forgery("S2", "entry 3", "signed by the key that has to sign it (a contribution of")
def a_byte_of_a_signature_is_flipped(folder: Folder) -> None:
    header = open_entry(folder.entries_of(2)[0])
    assert isinstance(header, Header)
    signature = bytes([header.contribution.signature[0] ^ 1]) + header.contribution.signature[1:]
    changed = replace(header, contribution=replace(header.contribution, signature=signature))
    folder.execute("UPDATE entries SET bytes = ? WHERE position = 3", entry_of(changed))


@forgery("B2", "entry 0", "nothing after them")
def a_byte_follows_an_entry(folder: Folder) -> None:
    folder.execute("UPDATE entries SET bytes = ? WHERE position = 0", folder.run.log.entries[0] + b"\0")


@forgery("T3", "log.sqlite3", "an entry is missing")
def an_entry_is_missing(folder: Folder) -> None:
    folder.execute("DELETE FROM entries WHERE position = 4")


@forgery("T3", "the tree", "the database says 25 entries, and has 23")
def the_last_entries_are_missing(folder: Folder) -> None:
    folder.execute("DELETE FROM entries WHERE position >= 23")


@forgery("T3", "the tree", "the database says another root")
def a_mean_is_another_than_the_one_that_was_signed(folder: Folder) -> None:
    *_, last = folder.entries_of(LAST)
    end = len(folder.before(LAST + 1)) - 1
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
    folder.write(HEAD, (folder.path / HEAD).read_bytes().replace(b"\n25\n", b"\n24\n"))


@forgery("T6", "snapshots/round-00000003.json", "the size or the root beside it is another")
def the_size_beside_a_snapshot_is_another(folder: Folder) -> None:
    said = json.loads((folder.path / snapshot_of(3, "json")).read_bytes())
    folder.write(snapshot_of(3, "json"), json.dumps({**said, "ledger_size": 1}).encode())


@forgery("T6", "snapshots/round-00000006.json", "it has not come to round 6")
def a_snapshot_is_proved_by_an_older_head(folder: Folder) -> None:
    folder.write(snapshot_of(LAST, "json"), (folder.path / snapshot_of(3, "json")).read_bytes())


@forgery("D1", "round 2", "of 1 of 2 contributions it is missing")
def a_body_is_damaged(folder: Folder) -> None:
    folder.change(bodies_of(2), lambda data: data.__setitem__(-40, data[-40] ^ 1))


@forgery("D3", "round 6", "of 5 of 6 rounds")
def the_bodies_of_a_round_are_missing(folder: Folder) -> None:
    (folder.path / bodies_of(4)).unlink()


@forgery("D1", "round 2", "another root than the contribution of")
def a_body_is_that_of_another_contribution(folder: Folder) -> None:
    one, other = folder.run.rounds[1].handed_in
    rewrite_bodies(folder, 2, [replace(one, body=other.body), replace(other, body=one.body)])


@forgery("D2", "round 2", "an exponent beyond its range")
def a_body_has_an_exponent_that_there_is_not(folder: Folder) -> None:
    one, other = folder.run.rounds[1].handed_in
    rewrite_bodies(folder, 2, [replace(one, body=b"\x18" + one.body[1:]), other])


@forgery("D1", "round 2", "claims beside it are others than the log has")
def a_claim_beside_a_body_is_another(folder: Folder) -> None:
    one, other = folder.run.rounds[1].handed_in
    header = replace(one.header, claims=resigned(other.header, THREE, 0, microbatch_ms=9).claims)
    rewrite_bodies(folder, 2, [replace(one, header=header), other])


@forgery("U1", "snapshots/round-00000003.safetensors", "another digest")
def a_weight_in_a_snapshot_is_another(folder: Folder) -> None:
    folder.change(snapshot_of(3), lambda data: data.__setitem__(-2, data[-2] ^ 1))


@forgery("U1", "snapshots/round-00000006.safetensors", "it is of round 3")
def a_snapshot_is_that_of_another_round(folder: Folder) -> None:
    folder.write(snapshot_of(LAST), (folder.path / snapshot_of(3)).read_bytes())


@forgery("U1", "snapshots/round-00000003.safetensors", "bytes that are of no vector")
def bytes_follow_a_snapshot(folder: Folder) -> None:
    folder.change(snapshot_of(3), lambda data: data.extend(b"more"))


@forgery("U3", "round 6", "3 of 6 states were computed")
def the_first_state_is_missing(folder: Folder) -> None:
    for suffix in ("safetensors", "json"):
        (folder.path / snapshot_of(0, suffix)).unlink()


@forgery("C1", "credits.json", "it says 9999")
def a_credit_is_too_high(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    said["accounts"][0]["paid"] = 9999
    tell(folder, said)


@forgery("C1", "credits.json", "has 500, it says 0")
def an_account_is_left_out_of_the_credits(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    last = min(said["accounts"], key=lambda account: account["paid"])
    tell(folder, {**said, "accounts": [account for account in said["accounts"] if account is not last]})


@forgery("C1", "credits.json", "is proven")
def a_key_is_said_to_be_proven(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    peer = next(peer for account in said["accounts"] for peer in account["peers"] if not peer["is_proven"])
    peer["is_proven"] = True
    tell(folder, said)


@forgery("T2", "receipt", "0 of 1 operators signed it")
def a_receipt_is_signed_by_another_key(folder: Folder) -> None:
    show(folder, receipt_of(folder.run.log.entries, 2, folder.run.log.signed.run, signer=STRANGER))


@forgery("T5", "receipt", "a receipt")
def a_receipt_is_of_another_entry(folder: Folder) -> None:
    entries = folder.run.log.entries
    show(folder, (folder.path.parent / "receipt").read_bytes().replace(entries[2], entries[5]))


# With the operator's key.


@forgery("E1", "entry 0", "of another run")
def the_manifest_is_another_that_the_operator_signed(folder: Folder) -> None:
    changed = replace(folder.run.log.ledger.manifest, reward_pool=999)
    signed = SignedManifest.sign(changed, OPERATOR)
    folder.write(MANIFEST, pack(signed))
    folder.execute("UPDATE log SET run = ?", signed.run)
    folder.seal(folder.run.log.entries)


@forgery("T2", "tree-head.txt", "0 of 1 operators signed it")
def a_tree_head_is_signed_by_another_key(folder: Folder) -> None:
    tree = tree_of(folder.run.log.entries)
    folder.write(HEAD, folder.head(tree.size, tree.root(), signer=STRANGER))


@forgery("T2", "tree-head.txt", "it is of manta/00000000")
def a_tree_head_is_of_another_run(folder: Folder) -> None:
    tree = tree_of(folder.run.log.entries)
    folder.write(HEAD, folder.head(tree.size, tree.root(), run=bytes(32)))


@forgery("T3", "tree-head.txt", "its root is another than that of the first 25 entries")
def a_tree_head_has_another_root(folder: Folder) -> None:
    folder.write(HEAD, folder.head(25, UNKNOWN))


@forgery("T3", "tree-head.txt", "it is of 26 entries, there are 25")
def a_tree_head_is_of_more_entries(folder: Folder) -> None:
    folder.write(HEAD, folder.head(26, UNKNOWN))


@forgery("T3", "the tree", "23 of 25 entries are under the signed head")
def a_tree_head_is_of_fewer_entries(folder: Folder) -> None:
    folder.write(HEAD, folder.head(23, tree_of(folder.run.log.entries[:23]).root()))


@forgery("T3", "receipt", "another entry than the log has")
def a_receipt_is_of_a_second_history(folder: Folder) -> None:
    folder.seal_round(LAST, open_ms=folder.run.log.ledger.manifest.exchange.max_open_ms)
    show(folder, receipt_of(folder.run.log.entries, len(folder.before(LAST + 1)) - 1, folder.run.log.signed.run))


@forgery("V1", "round 6", "they are 65535, 43690")
def the_weights_of_a_mean_are_others(folder: Folder) -> None:
    folder.seal_round(LAST, weights=UNKNOWN)


@forgery("V2", "round 6", "the mean is that of the bodies (its root is")
def a_mean_is_another(folder: Folder) -> None:
    folder.seal_round(LAST, mean=folder.run.rounds[LAST - 2].after.mean.root)


@forgery("V3", "round 6", "the min exponent is -25, the entry says -24")
def a_min_exponent_is_another(folder: Folder) -> None:
    folder.seal_round(LAST, min_exponent=-24)


@forgery("V3", "round 6", "other thresholds")
def a_threshold_is_another(folder: Folder) -> None:
    thresholds = round_in(folder.entries_of(LAST)).thresholds
    folder.seal_round(LAST, thresholds=(replace(thresholds[0], norm=thresholds[0].norm * 2), *thresholds[1:]))


@forgery("U2", "round 6", "follows from the state and the mean (its digest is")
def a_state_is_that_of_the_round_before(folder: Folder) -> None:
    folder.seal_round(LAST, state=round_in(folder.entries_of(LAST - 1)).state)


@forgery("U2", "round 4", "follows from the state and the mean (its digest is")
def a_state_is_another_and_all_that_comes_after_it_follows_from_it(folder: Folder) -> None:
    """The peers go on from it, by their own keys."""
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
    one = next(one for one in folder.run.rounds[LAST - 1].handed_in if one.header.contribution.open().founder != THREE.public_key)
    body = one.header.contribution.open().body
    log = folder.log(LAST)
    headers = [each.header for each in folder.run.rounds[LAST - 1].handed_in]
    lying = [with_contribution(header, THREE, body=body) if founder(header) == THREE.public_key else header for header in headers]
    said = round_in(folder.entries_of(LAST))
    entries = log.round(lying, verdicts_in(folder.entries_of(LAST)), mean=said.mean, state=said.state, thresholds=said.thresholds)
    folder.seal([*log.entries, *entries])
    rewrite_bodies(
        folder, LAST, [replace(kept, header=header) for kept, header in zip(folder.run.rounds[LAST - 1].handed_in, lying, strict=True)]
    )


@forgery("E1", "entry 16", "known kind, and of this run (bonus)")
def an_entry_is_of_an_unknown_kind(folder: Folder) -> None:
    folder.seal([*folder.before(5), *folder.entries_of(5)[:2], encode(("bonus", b""))])


@forgery("E13", "entry 9", "not a commit of this log")
def a_verdict_is_left_out(folder: Folder) -> None:
    """The operator says nothing of it in the round after it, either; all that comes later names another commit."""
    entries, said = folder.entries_of(3), round_in(folder.entries_of(3))
    assert is_of(entries[0], Verdict)
    rest = [entry for round_ in range(4, LAST + 1) for entry in folder.entries_of(round_) if not is_of(entry, Verdict)]
    folder.seal([*folder.before(3), *entries[1:-1], entry_of(replace(said, first=said.first - 1)), *rest])


@forgery("E9", "entry 7", "an auditor judges a contribution once")
def a_verdict_stands_twice(folder: Folder) -> None:
    entries = folder.entries_of(3)
    folder.seal([*folder.before(3), entries[0], *entries])


@forgery("E7", "entry 6", "a verdict is a named auditor's")
def a_verdict_is_by_another_auditor(folder: Folder) -> None:
    verdict = open_entry(folder.entries_of(3)[0])
    assert isinstance(verdict, Signed)
    said = replace(verdict.open(), auditor=AUDITORS[1].public_key, by=AUDITORS[1].public_key)
    folder.seal([*folder.before(3), entry_of(Signed.sign(said, AUDITORS[1]))])


@forgery("E6", "entry 3", "not an operator's")
def a_revocation_is_signed_by_another_operator(folder: Folder) -> None:
    folder.seal([*folder.before(2), folder.run.log.revocation(ONE, operator=STRANGER), *folder.entries_of(2)])


@forgery("E25", "entry 1", "strictly sorted by founder")
def contributions_stand_in_another_order(folder: Folder) -> None:
    one, other, last = folder.entries_of(1)
    folder.seal([other, one, last])


@forgery("E27", "entry 1", "the places of the contributions right before it")
def a_contribution_is_dropped(folder: Folder) -> None:
    folder.seal(folder.entries_of(1)[1:])


@forgery("E23", "entry 21", "its work on this base is in the log")
def a_claim_is_counted_twice(folder: Folder) -> None:
    """The work of THREE in the round before."""
    folder.seal_contribution(lambda header: of_round(folder, LAST - 1))


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
    folder.seal_round(LAST, base=UNKNOWN)


@forgery("E28", "entry 22", "by at most one exponent")
def a_min_exponent_moves_too_far(folder: Folder) -> None:
    folder.seal_round(LAST, min_exponent=round_in(folder.entries_of(LAST)).min_exponent + 2)


@forgery("E29", "entry 22", "within the manifest's bounds")
def a_round_is_open_for_too_long(folder: Folder) -> None:
    folder.seal_round(LAST, open_ms=folder.run.log.ledger.manifest.exchange.max_open_ms + 1)


@forgery("E2", "entry 14", "before the last round")
def a_settlement_comes_too_early(folder: Folder) -> None:
    before = folder.before(5)
    folder.seal([*before, entry_of(Settlement(folder.run.log.ledger.run, sha256(before[-1])))])


@forgery("E30", "entry 24", "a settlement is on the last round's commit")
def a_settlement_is_on_another_commit(folder: Folder) -> None:
    folder.seal([*folder.run.log.entries[:-1], folder.run.log.settlement(commit=UNKNOWN)])


@forgery("E2", "entry 25", "the run is over")
def an_entry_follows_the_end(folder: Folder) -> None:
    folder.seal([*folder.run.log.entries, folder.run.log.entries[-1]])


@forgery("E2", "entry 22", "in the middle of a round")
def the_log_ends_before_a_rounds_entry(folder: Folder) -> None:
    folder.seal_last(LAST, lambda entries: entries[:-1])


def founder(header: Header) -> bytes:
    return header.contribution.open().founder


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
    return next(one.header for one in folder.run.rounds[round - 1].handed_in if founder(one.header) == THREE.public_key)


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
