"""Writes the test vectors beside the documents, to docs/vectors: python -m tests.docs.vectors

Nothing in them is random: made again, they are the same. Bytes are in hexadecimal. ``records.json`` has a record of each kind,
``ledgers.json`` ten logs that hold and what they add up to, ``invalid.json`` a hundred that are refused, each with the rule of
docs/protocol.md that its last entry breaks, ``examples.json`` the small ones of ``tests.docs.examples``, ``verdicts.json``
which contributions are drawn, what verdicts come to, and what is paid. ``bodies.json``, ``means.json``, ``updates.json`` and
``proofs.json`` are those of ``tests.docs.numbers``; ``runs.json`` has whole runs with their bodies, means and states
(``tests.docs.whole``).
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from manta_swarm.protocol.admission import Admission, AdmissionProof
from manta_swarm.protocol.auditing import (
    AskAssignments,
    AskVector,
    AskWanted,
    Assignment,
    Assignments,
    AuditCandidate,
    Finding,
    Need,
    Needed,
    PlacedContribution,
    VectorPage,
    WantedAnswer,
    WantedFate,
    WantedOf,
    auditor_of,
    drawn,
    number,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.records import MAX_ENTRY_BYTES, Entry, Header, Included, InclusionPromise, Listing, Receipt, Round, open_entry
from manta_swarm.protocol.reputation import Pools, Reputation
from manta_swarm.protocol.rewards import share_out
from manta_swarm.protocol.signed import Signed, is_signed
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.protocol.table import Weighed
from manta_swarm.protocol.verdicts import Outcome, Settlement, Verdict
from tests.contributions import PEERS
from tests.docs.examples import examples
from tests.docs.invalid import invalid
from tests.docs.ledgers import MADE, RULES
from tests.docs.logs import AUDITORS, ONE, OPERATOR, STRANGER, TWO, Entries, Log, head_of, tree_of
from tests.docs.messages import Messages
from tests.docs.numbers import bodies, bytes_of, means, proofs, updates
from tests.docs.whole import FORMULA, RUNS, Committed, WholeRun
from tests.documents import ROOT

FOLDER = ROOT / "docs" / "vectors"
KEYS = [PublicKey(each.public_key) for each in (*PEERS, *AUDITORS, STRANGER, OPERATOR)]  # that may be proven


def hexed(value: Any) -> Any:
    """Return a value as JSON has it: bytes in hexadecimal, also as keys."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {hexed(key): hexed(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [hexed(each) for each in (sorted(value) if isinstance(value, set | frozenset) else value)]
        case _:
            return value


def summed(log: Log) -> dict[str, Any]:
    """Return what a log adds up to."""
    ledger = log.ledger
    return {
        "round": ledger.round,
        "commit": ledger.last_commit,
        "proven": {key for key in KEYS if ledger.reputation.is_proven(key)} if ledger.manifest.is_audited else [],
        "credits": ledger.credits(),
        "earned": {key: amount for key, amount in sorted(ledger.reputation.earned.items()) if amount},
        "settled": ledger.settled,
    }


def ledgers(logs: dict[str, Log]) -> list[dict[str, Any]]:
    """Return the valid ones."""
    return [
        {
            "name": name,
            "what": (MADE[name].__doc__ or "").strip(),
            "manifest": pack(log.signed),
            "run": log.ledger.run,
            "entries": log.entries,
            **summed(log),
        }
        for name, log in logs.items()
    ]


def refused() -> list[dict[str, Any]]:
    """Return the invalid ones: entries of a valid ledger, and what follows them. Where nothing does, the manifest is refused."""
    return [
        {
            "name": each.name,
            "rule": each.rule,
            **({"ledger": each.ledger, "entries": each.kept} if each.ledger else {"manifest": pack(each.signed)}),
            "then": each.then,
        }
        for each in invalid()
    ]


def signed_records(entries: Entries) -> Iterator[tuple[str, object]]:
    """Yield the records of a log with what is signed in them, by their names."""
    for entry in entries:
        record = open_entry(entry)
        yield f"Signed{record.of.__name__}" if isinstance(record, Signed) else type(record).__name__, record
        if isinstance(record, Header):
            yield "SignedContribution", record.contribution
            yield "Contribution", record.contribution.open()
            for claim in record.claims:
                yield "SignedClaim", claim
                yield "Claim", claim.open()
        elif is_signed(record, Admission):
            admission = record.open()
            yield from (("Admission", admission), ("SignedInvitation", admission.invitation))
            yield "Invitation", admission.invitation.open()
        elif isinstance(record, Signed):
            yield record.of.__name__, record.open()


def receipts(log: Log) -> Iterator[tuple[str, object]]:
    """Yield what proves that a log has its last round, and a contribution of it."""
    tree, last = tree_of(log.entries), len(log.entries) - 1
    head = head_of(log.entries, log.ledger.run)
    receipt = Receipt(log.entries[last], last, tuple(tree.inclusion_proof(last)), head)
    included = Included(log.entries[last - 1], last - 1, tuple(tree.inclusion_proof(last - 1)))
    yield from (("Receipt", receipt), ("Included", included), ("Listing", Listing(receipt, included)))


def messages(log: Log) -> Iterator[tuple[str, object]]:
    """Yield what is not in the log: inclusion promises, admission proofs, and what audits need."""
    header = next(record for record in map(open_entry, log.entries) if isinstance(record, Header))
    digest, run = header.contribution.digest, log.ledger.run
    yield from (
        ("InclusionPromise", inclusion_promise := InclusionPromise(run, 1, digest)),
        ("SignedInclusionPromise", Signed.sign(inclusion_promise, OPERATOR)),
        ("AdmissionProof", shown := AdmissionProof(run, OPERATOR.public_key, ONE.public_key, "member")),
        ("SignedAdmissionProof", Signed.sign(shown, OPERATOR)),
        ("Weighed", Weighed(header.contribution.open().body, 1, "here", 65_535, 1_000)),
        ("AskWanted", AskWanted((PlacedContribution(1, digest),))),
        ("WantedAnswer", WantedAnswer((WantedOf(int(WantedFate.BRING), (sha256(b"mean"),)), WantedOf(int(WantedFate.NOTHING), ())))),
        ("VectorPage", VectorPage(digest, sha256(b"\0" * 8), 0, b"\0" * 8)),
        ("AskVector", AskVector(digest, sha256(b"\0" * 8), 0)),
        ("AskAssignments", AskAssignments(7)),
        ("Need", Need(digest, 1)),
        ("Finding", finding := Finding(run, TWO.public_key, 1, digest, (0,) * len(header.claims))),
        ("SignedFinding", signed := Signed.sign(finding, TWO)),
        ("Assignment", one := assignment(header, signed)),
        ("Assignments", Assignments((one,), 1, 1)),
    )


def assignment(header: Header, finding: Signed[Finding]) -> Assignment:
    """Return an assignment with a volunteer's finding."""
    return Assignment(1, header, sha256(b"state"), -20, (1,) * len(header.claims), 1, 0, 0, (Needed(0, 2),), (TWO.public_key,), (finding,))


def records(logs: dict[str, Log]) -> list[dict[str, Any]]:
    """Return a record of each kind, with the digest of what is signed."""
    found: dict[str, object] = {"Manifest": logs["accused"].ledger.manifest, "SignedManifest": logs["accused"].signed}
    for name in ("accused", "sparse", "invited"):
        for kind, record in signed_records(logs[name].entries):
            found.setdefault(kind, record)
    found |= {kind: record for make in (receipts, messages) for kind, record in make(logs["cohorts"])}
    found["Entry"] = unpack(Entry, logs["accused"].entries[0], max_bytes=MAX_ENTRY_BYTES)
    made_up = [(kind, record) for kind, record in Messages(found).all() if type(found.get(kind)) is not type(record)]
    return [
        {"record": kind, "packed": pack(record), **({"digest": sha256(pack(record))} if kind.startswith("Signed") else {})}
        for kind, record in sorted((*found.items(), *made_up), key=lambda one: (one[0], pack(one[1])))
    ]


def draws() -> dict[str, Any]:
    """Return numbers, auditors and draws that follow from a beacon."""
    beacon, cases = sha256(b"beacon"), []
    for place, percents in enumerate(((60, 100), (5, 10), (100, 40), (30, 80))):
        candidates = [
            AuditCandidate(sha256(b"contribution %d %d" % (place, n)), 16 * (1 + n % 5), has_proven=n % 3 == place, is_known=n % 2 == 0)
            for n in range(12)
        ]
        rules = replace(RULES, audit_percent=percents[0], newcomer_percent=percents[1])
        cases.append(
            {
                "audit_percent": percents[0],
                "newcomer_percent": percents[1],
                "candidates": [[each.contribution, each.samples, each.has_proven, each.is_known] for each in candidates],
                "drawn": drawn(rules, beacon, candidates),
            }
        )
    named = tuple(each.public_key for each in AUDITORS)
    contribution = sha256(b"contribution")
    return {
        "beacon": beacon,
        "numbers": [[what, contribution, number(what, beacon, contribution)] for what in ("audit", "order", "part", "auditor")],
        "auditors": [[keys, named, auditor_of(beacon, contribution, keys, named)] for keys in ((), named[:1], named[1:], named)],
        "draws": cases,
    }


def outcomes() -> list[dict[str, Any]]:
    """Return what verdicts of up to three auditors on one claim come to, where the first one is the one drawn."""
    found = []
    for count in (1, 3):
        named = tuple(each.public_key for each in AUDITORS[:count])
        reputation = Reputation(replace(RULES, named=named), Pools(1000, 100))
        for said in product((None, *Outcome), repeat=count):
            verdicts = tuple(
                Verdict(bytes(32), auditor, 1, bytes(32), (int(each),), auditor)
                for auditor, each in zip(named, said, strict=True)
                if each is not None
            )
            found.append({"said": said, "outcome": reputation._outcome(named[0], verdicts, 0)})
    return found


def shares() -> list[dict[str, Any]]:
    """Return how pools are shared out."""
    keys = [bytes([place]) * 32 for place in range(4)]
    cases = ((1000, (3, 3, 1), None), (7, (1, 1, 1, 1), None), (1000, (5, 1, 1), 250), (10, (0, 0), None), (2**48, (2**60, 1), None))
    return [
        {
            "pool": pool,
            "cap": pool if cap is None else cap,
            "weights": dict(zip(keys, weights, strict=False)),
            "shares": share_out(pool, dict(zip(keys, weights, strict=False)), cap),
        }
        for pool, weights, cap in cases
    ]


def rounds(log: Log) -> Iterator[dict[str, Any]]:
    """Yield what an audited log adds up to after each round, and after its settlement."""
    now = Log(log.signed)
    for index, entry in enumerate(log.entries):
        now.append([entry])
        if isinstance(open_entry(entry), Round | Settlement):
            yield {
                "entries": index + 1,
                **summed(now),
                "audits": {
                    digest: {"round": audit.round, "auditor": audit.auditor, "outcomes": audit.outcomes or (None,) * len(audit.work.keys)}
                    for digest, audit in now.ledger.reputation.audits.items()
                },
            }


def runs() -> list[dict[str, Any]]:
    """Return whole runs, with what each round comes to."""
    return [whole(name, make.__doc__ or "", make()) for name, make in RUNS.items()]


def whole(name: str, what: str, run: WholeRun) -> dict[str, Any]:
    """Return a run: its log, and of each round bodies, weights, some values of mean and state, heads, proofs and credits."""
    log, first = run.log, run.states()[0]
    return {
        "name": name,
        "what": what.strip(),
        "manifest": pack(log.signed),
        "run": log.ledger.run,
        "first_state": {
            "weights": first.parameters.numel(),
            "weight_i": FORMULA,
            "moments_of_zeros": len(first.moments),
            "digest": log.ledger.manifest.initial_state,
        },
        "entries": log.entries,
        "rounds": list(whole_rounds(run)),
        **summed(log),
    }


def whole_rounds(run: WholeRun) -> Iterator[dict[str, Any]]:
    """Yield what each round comes to; ``values`` are those of a few weights: place, of the mean, of the weights, of each moment."""
    now, tree = Log(run.log.signed), Tree()
    for committed in run.rounds:
        before = tree.size
        for entry in committed.entries:
            tree.append(leaf_hash(entry))
        now.append(committed.entries)
        after = committed.after
        yield {
            "entries": tree.size,
            "tree_head": head_of(now.entries, now.ledger.run),
            "inclusion_of_last": tree.inclusion_proof(tree.size - 1),
            "consistency_with_round_before": tree.consistency_proof(before),
            "bodies": [one.body for one in committed.handed_in],
            "weights": after.table_mean.weights,
            "clipped": after.table_mean.clipped,
            "mean": after.mean.root,
            "state": after.blob.root,
            "teacher": after.state.teacher,
            "values": some_values(committed),
            "credits": now.ledger.credits(),
        }


def some_values(committed: Committed) -> list[list[Any]]:
    """Return the values of the first weights of which a round's mean says something."""
    mean, state = committed.after.table_mean.mean, committed.after.state
    vectors = [mean, state.parameters.numpy(), *(moment.numpy() for moment in state.moments)]
    return [[place, *(bytes_of(vector[[place]]) for vector in vectors)] for place in map(int, mean.nonzero()[0][:4])]


def made() -> dict[str, Any]:
    """Return the files' content by name."""
    logs = {name: make() for name, make in MADE.items()}
    return {
        "examples": examples(),
        "records": records(logs),
        "ledgers": ledgers(logs),
        "invalid": refused(),
        "verdicts": {
            **draws(),
            "outcomes": outcomes(),
            "shares": shares(),
            "ledgers": {name: list(rounds(logs[name])) for name in ("audited", "accused")},
        },
        "bodies": bodies(),
        "means": means(),
        "updates": updates(),
        "proofs": proofs(),
        "runs": runs(),
    }


def files() -> dict[Path, str]:
    """Return each file's text by its path."""
    return {FOLDER / f"{name}.json": json.dumps(hexed(content), indent=1) + "\n" for name, content in made().items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
