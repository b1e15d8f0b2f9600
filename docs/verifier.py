"""A second implementation of the log's rules, which imports nothing of Manta's: the executable companion of docs/protocol.md.

    python docs/verifier.py FOLDER_OR_EXPORT [--run ID] [--receipt FILE] [--payouts DIR] [--credits FILE] [--whole]

FOLDER is an aggregator's data folder of a run, EXPORT what `manta-aggregator ledger export` writes. Checked are the manifest and every
signature, the encoding, each entry against the rules, the tree with its signed heads and its proofs, and the credits; and where the folder
has bodies and snapshots, the mean and the next state of each round, bit for bit. A line says of each kind what was checked. With --whole a
folder that lacks bodies or states is refused. Exit 0: all of it holds. Exit 1: one line says which entry breaks which rule. Exit 2: there
is nothing to check.

It needs cbor2, cryptography and numpy. "§6" is section 6 of docs/protocol.md; what it needs of docs/training.md is in verifier_values.py.
It does not check whether microbatches were trained as claims say: in an audited run it takes the auditors' word. Nothing shows that a log
is the newest one.
"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path

from verifier_files import (
    BadInput,
    Files,
    Tree,
    file_of,
    kept_bodies,
    leaf_hash,
    open_export,
    open_folder,
    root_by_inclusion,
    root_by_range,
    roots_by_consistency,
    snapshot,
    tree_root,
)
from verifier_ledger import Committed, Ledger
from verifier_records import (
    CLAIM,
    DIGEST,
    ENTRY,
    HEADER,
    MAX_ENTRY,
    MAX_HEADER,
    MAX_PAYOUT,
    PAYOUT,
    ROUND_ENTRY,
    Refused,
    about,
    decode,
    digest_of,
    encode,
    hold,
    open_head,
    open_manifest,
    open_receipt,
    opened,
    prove,
    read,
    sha256,
    unpack,
)
from verifier_values import State, left_by, open_body, vector_groups, weights_of

# §5 The tree


@dataclass(frozen=True)
class CheckedTree:
    """What holds of the tree: the newest head, how many heads, and from how many sizes a consistency proof leads to the newest."""

    size: int
    root: bytes
    heads: int
    sizes: int


def check_tree(files: Files, ledger: Ledger, ends: list[int]) -> CheckedTree:
    """Check what is stored and signed of the tree, and the proofs that follow; `ends` are the sizes at which no round is open."""
    tree, count, newest = Tree(map(leaf_hash, files.entries)), len(files.entries), None
    if files.stored:
        run, operator, size, root = files.stored
        hold("T3", run == ledger.run and operator in ledger.m.operators, "the database is of another run or operator")
        hold("T3", size == count, f"the database says {size} entries, and has {count}")
        hold("T3", root == tree.root(0, count), "the database says another root")
        complete = sum(count >> level for level in range(count.bit_length()))
        hold("T4", len(files.nodes) == complete, f"{len(files.nodes)} stored nodes of {complete}")
    for name, level, first, data in files.nodes:
        with about(name):
            width = len(data) // 32
            hold("T4", width and (first + width) << level <= count and len(data) % 32 == 0, "it is of no entries")
            hold("T4", data == b"".join(tree.root(at << level, (at + 1) << level) for at in range(first, first + width)), "another hash")
    for name, note in files.notes.items():
        with about(name):
            head = open_head(note, ledger.run, ledger.m, None if name == "checkpoint" else 1)
            hold("T3", head[0] <= count, f"it is of {head[0]} entries, there are {count}")
            hold("T3", head[1] == tree.root(0, head[0]), f"its root is another than that of the first {head[0]} entries")
            newest = newest or head
            if name in files.beside:
                number, *said = files.beside[name]
                hold("T6", tuple(said) == head, "the size or the root beside it is another")
                hold("T6", number <= ledger.round and ledger.size_after(number) <= head[0], f"it has not come to round {number}")
    size, root = newest
    for index in range(size):
        hold("T5", root_by_inclusion(tree.leaves[index], index, size, tree.inclusion(index, 0, size)) == root, f"entry {index}")
    olds = [each for each in sorted({*ends, *(head[1] for head in files.beside.values())}) if 0 < each <= size]
    for old in olds:
        before, proof = tree.root(0, old), tree.consistency(old, 0, size)
        hold("T5", roots_by_consistency(old, size, proof, before) == (before, root), f"{old} and {size} entries")
    return CheckedTree(size, root, len(files.notes), len(olds))


# §12 What a round leaves. §13 States. §16 The update


def digest_of_state(state: State) -> bytes:
    header = encode(("manta/state/v3", state.round, state.vectors[0].size, len(state.vectors) - 1, state.teacher))
    return tree_root([header, *(group for vector in state.vectors for group in vector_groups(vector))])


def mean_of(path: Path, round: Committed, ledger: Ledger, entries: list[bytes], n: int):
    """The mean of a round, whose contributions are `entries`, once its kept bodies, weights, thresholds and mean hold."""
    headers = {unpack(ENTRY, entry, MAX_ENTRY).body for entry in entries}
    found = {digest_of(unpack(HEADER, header, MAX_HEADER).contribution): (header, body) for header, body in kept_bodies(path)}
    lacking = sum(row.digest not in found for row in round.listed)
    hold("D1", not lacking, f"of {lacking} of {len(round.listed)} contributions it is missing")
    hold("D1", all(found[row.digest][0] in headers for row in round.listed), "claims beside it are others than the log has")
    with about("", "D2"):
        opened = [open_body(ledger.codec, found[row.digest][1], n) for row in round.listed]
    for body, row in zip(opened, round.listed, strict=True):
        hold("D1", tree_root(body.groups) == row.body, f"another root than the contribution of {row.founder.hex()[:16]} names")
    before, entry = ledger.rounds[round.entry.round - 1], round.entry
    min_exponents = [ledger.rounds[row.round - 1].min_exponent for row in round.listed]
    left = left_by(round.listed, opened, min_exponents, before, ledger.training_spec, ledger.codec, n)
    weighed = [(row.body, row.round, row.cohort, *each) for row, *each in zip(round.listed, *left.weights, strict=True)]
    hold("V1", tree_root(map(encode, weighed)) == entry.weights, f"they are {', '.join(map(str, left.weights[0]))}")
    root = tree_root(vector_groups(left.mean))
    hold("V2", root == entry.mean, f"its root is {root.hex()[:16]}, the entry says {entry.mean.hex()[:16]}")
    hold("V3", left.min_exponent == entry.min_exponent, f"the min exponent is {left.min_exponent}, the entry says {entry.min_exponent}")
    hold("V3", left.thresholds == [(each.role, (each.norm, each.samples)) for each in entry.thresholds], "other thresholds")
    return left.mean


def check_rounds(folder: Path, ledger: Ledger, entries: list[bytes]) -> Counter[str]:
    """Check the bodies, means, snapshots and states that a folder has; return how many of each hold."""
    n = sum(prod(weight.shape) for _, weight in weights_of(ledger.training_spec.space))
    held, state = Counter(), None
    for number, round in enumerate(ledger.rounds):
        path, kept = folder / f"bodies/round-{number:08d}.bodies", folder / f"snapshots/round-{number:08d}.safetensors"
        mean = None
        with about(f"round {number}"):
            if number and path.exists():
                first, count = round.entry.first, round.entry.contributions
                mean = mean_of(path, round, ledger, entries[first : first + count], n)
                held.update(bodies=len(round.listed), means=1)
            state = state.after(mean, ledger.training_spec, ledger.rounds[number - 1].state) if state and mean is not None else None
            if state:
                digest = digest_of_state(state)
                hold("U2", digest == round.state, f"its digest is {digest.hex()[:16]}, the entry says {round.state.hex()[:16]}")
                held.update(states=1)
        if kept.exists():
            with about(f"snapshots/{kept.name}", "U1"):
                about_it, *found = snapshot(kept)
                state = State(*found)
                hold("U1", {vector.size for vector in state.vectors} == {n}, f"vectors of other lengths than {n}")
                hold("U1", state.round == number, f"it is of round {state.round}")
                hold("U1", digest_of_state(state) == round.state, "another digest")
                named = about_it.get("run", ledger.run.hex()), about_it.get("state", round.state.hex())
                hold("U1", named == (ledger.run.hex(), round.state.hex()), "it names another run or state")
                held.update(snapshots=1)
    return held


# §7 Credits


def check_credits(said: dict, ledger: Ledger) -> int:
    """Check what `manta-aggregator credits --json` printed; return of how many accounts."""
    hold("C1", said["run"] == ledger.run.hex() and said["entries"] == ledger.size, "of another run, or of a log of another size")
    told = {account["key"]: account["paid"] for account in said["accounts"]}
    for key in sorted({*told, *(key.hex() for key in ledger.credits)}):
        found = ledger.credits[bytes.fromhex(key)]
        hold("C1", told.get(key, 0) == found, f"account {key[:16]} has {found}, it says {told.get(key, 0)}")
    for peer in (peer for account in said["accounts"] for peer in account["peers"]):
        hold("C1", peer["is_proven"] == ledger.is_proven(bytes.fromhex(peer["key"])), f"whether {peer['key'][:16]} is proven")
    return len(told)


def check_payout(data: bytes, ledger: Ledger, entries: list[bytes]) -> None:
    """Check a payout receipt as a peer keeps it, its proofs and that the log has what they prove."""
    values = decode(data, MAX_PAYOUT)
    payout, digest = read([PAYOUT, DIGEST], values)
    hold("C2", sha256(encode(values[0])) == digest, "its digest is another")
    receipt, found = payout.listing.receipt, payout.listing.contribution
    size, root = prove(receipt, ledger.run, ledger.m)
    kind, body = read(list(ENTRY.values()), decode(receipt.entry, MAX_ENTRY))
    hold("C2", kind == "round", f"it is of a {kind}")
    said = unpack(ROUND_ENTRY, body)
    places = range(said.first, said.first + said.contributions)
    with about("", "T5"):
        hold("T5", root_by_inclusion(leaf_hash(found.entry), found.index, size, found.proof) == root, "a contribution")
        for listed in payout.claims:
            leaves = list(map(leaf_hash, listed.entries))
            hold("T5", len(leaves) == said.contributions and root_by_range(leaves, said.first, size, listed.proof) == root, "contributions")
    hold("C2", found.index in places, "the contribution is of another round")
    for index, entry in ((receipt.index, receipt.entry), (found.index, found.entry)):
        hold("T3", index >= len(entries) or entries[index] == entry, "another entry than the log has")
    claims = unpack(HEADER, unpack(ENTRY, found.entry, MAX_ENTRY).body, MAX_HEADER).claims
    hold("C2", payout.claim in claims, "the contribution does not list the claim")
    key = opened("claim", CLAIM, "key", payout.claim).key
    earned = ledger.paid.get(said.round, {}).get(key, 0)
    for paid in payout.paid if not ledger.rules else ():
        hold("C2", paid == earned, f"round {said.round} paid {earned}, it says {paid}")


# All of it


@dataclass(frozen=True)
class Asked:
    """What to hold a folder to beside itself."""

    run: str | None = None
    receipts: tuple[Path, ...] = ()
    payouts: tuple[Path, ...] = ()  # folders of payout receipts
    credits: Path | None = None
    is_whole: bool = False


def verify_all(folder: Path, asked: Asked = Asked()) -> tuple[Ledger, dict[str, str]]:
    """Return the ledger of a folder or an export of which everything holds, and of each kind what was checked."""
    is_folder = (folder / "log.sqlite3").exists()
    if not is_folder and not (folder / "checkpoint").exists():
        raise BadInput(f"{folder} holds neither a log nor an export of one")
    with about("manifest.cbor"):
        run, m = open_manifest(file_of(folder / "manifest.cbor"))
        hold("M3", asked.run in (None, run.hex()), run.hex())
    if is_folder:
        with about("log.sqlite3", "T3"):
            files = open_folder(folder)
    else:
        with about("checkpoint", "T4"):
            files = open_export(folder, open_head(file_of(folder / "checkpoint").decode(), run, m)[0])
    ledger, ends = Ledger(run, m), []
    for index, entry in enumerate(files.entries):
        with about(f"entry {index}"):
            ledger.append(entry)
        if ledger.is_between_rounds:
            ends.append(index + 1)
    with about(f"entry {len(files.entries)}"):
        hold("E2", ledger.is_between_rounds, "the log ends in the middle of a round")
    with about("the tree"):
        tree = check_tree(files, ledger, ends)
        hold("T3", tree.size == ledger.size or not asked.is_whole, f"{tree.size} of {ledger.size} entries are under the signed head")
    for path in asked.receipts:
        with about(str(path)):
            index, entry = open_receipt(file_of(path), run, m)
            hold("T3", index >= len(files.entries) or files.entries[index] == entry, "another entry than the log has")
    payouts = [path for folder_ in asked.payouts for path in sorted(folder_.glob("[0-9]*"))]
    for path in payouts:
        with about(f"{path.parent.name}/{path.name}"):
            check_payout(file_of(path), ledger, files.entries)
    held = check_rounds(folder, ledger, files.entries) if is_folder else Counter()
    with about(f"round {ledger.round}"):
        hold("D3", held["means"] == ledger.round or not asked.is_whole, f"of {held['means']} of {ledger.round} rounds")
        hold("U3", held["states"] == ledger.round or not asked.is_whole, f"{held['states']} of {ledger.round} states were computed")
    told = None
    if asked.credits:
        with about(str(asked.credits)):
            try:
                told = check_credits(json.loads(file_of(asked.credits)), ledger)
            except (KeyError, TypeError) as error:
                raise BadInput(f"{asked.credits} says of no credits: {error!r}") from error
    return ledger, report(ledger, tree, held, len(asked.receipts), len(payouts), told)


def report(ledger: Ledger, tree: CheckedTree, held: Counter[str], receipts: int, payouts: int, told: int | None) -> dict[str, str]:
    """Return of each kind what was checked."""
    kinds, rounds, over = ledger.kinds, ledger.round, ", settled" if ledger.is_settled else ""
    counted = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in sorted(kinds.items()))
    counted = f" ({counted})" if counted else ""
    return {
        "run": ledger.run.hex(),
        "manifest": f"signed by {ledger.m.operators[0].hex()[:16]}, and its fields fit each other",
        "entries": f"{ledger.size} keep the rules, up to round {rounds} of {ledger.m.num_rounds}{over}{counted}",
        "signatures": f"{1 + ledger.signatures} hold, and those of the heads",
        "tree heads": f"{tree.heads} are signed and fit the entries; the newest is of {tree.size}, root {tree.root.hex()}",
        "inclusion": f"{tree.size} proofs lead to that root, of each entry one",
        "consistency": f"{tree.sizes} proofs lead to that root, of each size at which no round is open and of each older head",
        "receipts": f"{receipts} hold, and {payouts} payout receipts",
        "bodies": f"{held['bodies']} of {held['means']} rounds are those of their contributions",
        "means": f"{held['means']} of {rounds} follow from the bodies, bit for bit, with weights, thresholds and min exponent",
        "states": f"{held['states']} of {rounds} follow from state and mean before them, bit for bit; {held['snapshots']} snapshots hold",
        "credits": f"{sum(ledger.credits.values())} units for {len(ledger.credits)} accounts follow from the entries"
        + ("" if told is None else f", and those that are told of {told} are the same"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Check a run's log without any of Manta's own code.")
    parser.add_argument("folder", type=Path, help="an aggregator's data folder of a run, or an export of its log")
    parser.add_argument("--run", metavar="ID", help="the id that the run has to have")
    parser.add_argument("--receipt", type=Path, action="append", default=[], help="a file with a receipt, to be checked too")
    parser.add_argument("--payouts", type=Path, action="append", default=[], help="a peer's folder of payout receipts, to be checked too")
    parser.add_argument("--credits", type=Path, help="a file with what `manta-aggregator credits --json` printed, to be checked too")
    parser.add_argument("--whole", action="store_true", help="refuse a folder that lacks the bodies or the states of a round")
    asked = parser.parse_args()
    try:
        _, said = verify_all(asked.folder, Asked(asked.run, tuple(asked.receipt), tuple(asked.payouts), asked.credits, asked.whole))
    except Refused as refused:
        print(f"refused: {refused.where}: {refused}")
        return 1
    except (BadInput, ValueError) as error:
        print(f"verifier: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"{kind}: {text}" for kind, text in said.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
