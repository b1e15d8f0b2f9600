"""A second implementation of the log's rules, which imports nothing of Manta's: the executable companion of docs/protocol.md.

    python docs/verifier.py FOLDER_OR_EXPORT [--run ID] [--receipt FILE]

FOLDER is an aggregator's data folder of a run, EXPORT what `manta-aggregator ledger export` writes. Checked are the manifest and every
signature, the encoding, each entry against the rules, the tree with its signed heads and its proofs, and the credits; and where the folder
has bodies and snapshots, the mean and the next state of each round, bit for bit. Exit 0: all of it holds. Exit 1: one line says which entry
breaks which rule. Exit 2: there is nothing to check.

It needs cbor2, cryptography and numpy. "§6" is section 6 of docs/protocol.md; what it needs of docs/training.md is in verifier_values.py.
It does not check whether microbatches were trained as claims say: in an audited run it takes the auditors' word. Nothing shows that a log
is the newest one.
"""

import argparse
import base64
import hashlib
import re
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from unicodedata import is_normalized

import cbor2
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from verifier_files import (
    BadInput,
    Tree,
    file_of,
    kept_bodies,
    leaf_hash,
    open_export,
    open_folder,
    root_by_inclusion,
    roots_by_consistency,
    snapshot,
    tree_root,
)
from verifier_values import Codec, State, TrainingSpec, left_by, open_body, vector_groups, weights_of

RULES = {
    "B1": "a record is CBOR of integers, strings and arrays of stated length, of bounded size",
    "B2": "a record has its canonical bytes, and nothing after them",
    "B3": "a record has its fields, each of its type and in its range",
    "S1": "a public key is a point of large order, in its one form",
    "S2": "a record is signed by the key that has to sign it",
    "M1": "the manifest is of this version of the protocol",
    "M2": "the manifest's fields fit each other",
    "M3": "the run is the one that was asked for",
    "T1": "a tree head is a signed note",
    "T2": "a tree head is of this run, and enough operators signed it",
    "T3": "the entries hash to the signed root",
    "T4": "each stored node, or tile, is what lies below it comes to",
    "T5": "proofs of inclusion and of consistency lead to the signed root",
    "E1": "an entry is of a known kind, and of this run",
    "E2": "entries come in the order of the grammar, and none after the run's end",
    "E3": "an admission or a revocation stands in a run that has it",
    "E4": "an invitation is an operator's, stands, has not ended, and is not used up",
    "E5": "an admitted key is not in, and was never taken back",
    "E6": "a revocation is an operator's, of a key that is in or of an invitation that stands",
    "E7": "a verdict is a named auditor's, in an audited run",
    "E8": "a verdict is on a contribution that was drawn, and is not paid yet",
    "E9": "an auditor judges a contribution once, and a round's verdicts are strictly sorted by digest, at most 2048",
    "E10": "a verdict has an outcome for each claim",
    "E11": "that something was not brought is said once the time for that is over",
    "E12": "a verdict is by the auditor's own work, or, if all is good, by that of a proven key; never by a key of the contribution",
    "E13": "a base is a commit of this log, the one before the record's round, and at most 4 commits old",
    "E14": "no update sorted the channels since the base",
    "E15": "a contribution lists exactly the claims that come with it",
    "E16": "claims are strictly sorted by key, and the founder has one",
    "E17": "each claim has its contribution's base and cohort, and names its founder or stands alone",
    "E18": "each key was admitted, not as a guest, and not taken back",
    "E19": "a claim has the manifest's local steps and gives a vector, or dropped out and gives none",
    "E20": "a claim counts the architectures that its round asks for, as often as its indices say",
    "E21": "a claim has no more samples than allowed, shards that there are, and a partner only where samples have two views",
    "E22": "only a sparse codec leaves a residual",
    "E23": "a key's work on one base counts once, and a key stands once in a round",
    "E24": "a contribution says who counted in each step, and in the body",
    "E25": "a round's contributions are strictly sorted by founder, and at most max_rows",
    "E26": "a round follows the one before it: number and base",
    "E27": "a round names the places of the contributions right before it",
    "E28": "the min exponent moves by at most one exponent",
    "E29": "open_ms lies within the manifest's bounds",
    "E30": "a settlement is on the last round's commit",
    "E31": "the manifest prices every architecture",
    "D1": "a round's kept bodies are those of its contributions",
    "D2": "a body is exactly what its values are coded to",
    "V1": "weights is the root of what each contribution weighs",
    "V2": "the mean is that of the bodies",
    "V3": "min exponent and thresholds follow from the bodies",
    "U1": "a snapshot is the state that the log names",
    "U2": "the next state follows from the state and the mean",
}


class Refused(Exception):
    """A rule does not hold."""

    def __init__(self, rule: str, why: str = "", where: str = "") -> None:
        super().__init__(f"{rule}: {RULES[rule]}" + (f" ({why})" if why else ""))
        self.rule, self.where = rule, where


def hold(rule: str, condition: object, why: str = "") -> None:
    if not condition:
        raise Refused(rule, why)


@contextmanager
def about(where: str, rule: str = ""):
    """Say of what is refused inside what it is about, and of a ValueError that it breaks a rule."""
    try:
        yield
    except Refused as refused:
        refused.where = refused.where or where
        raise
    except ValueError as error:
        if not rule:
            raise
        raise Refused(rule, str(error), where) from error


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


# §2 Encoding

MAX_DEPTH, MAX_ITEMS = 8, 65_536
encode = cbor2.dumps


def decode(data: bytes, max_bytes: int):
    """The value of these bytes: int, bytes, str, or a tuple of such."""
    hold("B1", len(data) <= max_bytes, f"{len(data)} bytes, at most {max_bytes}")
    items = 1

    def read(at: int, depth: int):
        nonlocal items
        hold("B2", at < len(data), "cut off")
        major, argument, at = data[at] >> 5, data[at] & 31, at + 1
        hold("B1", major <= 4 and argument <= 27, "another kind of CBOR")
        if argument >= 24:
            size = 1 << (argument - 24)
            argument, at = int.from_bytes(data[at : at + size], "big"), at + size
        if major <= 1:
            hold("B1", argument < 2**63, "an integer beyond 64 bits")
            return (argument if major == 0 else -1 - argument), at
        if major <= 3:
            end = at + argument
            return (data[at:end] if major == 2 else data[at:end].decode()), end
        items += argument
        hold("B1", items <= MAX_ITEMS and depth < MAX_DEPTH, "too many items, or nested too deep")
        found = []
        for _ in range(argument):
            item, at = read(at, depth + 1)
            found.append(item)
        return tuple(found), at

    try:
        value, end = read(0, 0)
    except UnicodeDecodeError as error:
        raise Refused("B1", "a text that is not UTF-8") from error
    hold("B2", end == len(data) and encode(value) == data, "cut off, not canonical, or bytes after the end")
    return value


# §4 Records. A form says what a value may be: a range of integers, a set of lengths of bytes, a pattern of text, (form, least, most) for a
# list, a list of forms for an array without names, a dictionary for a record's fields, or a function.

INT64 = range(-(2**63), 2**63)


def between(least: int, most: int) -> range:
    return range(least, most + 1)


def read(form, value):
    """Return a decoded value as its form has it."""
    match form:
        case range():
            hold("B3", type(value) is int and value in form, f"{value!r} is no integer of {form.start} to {form.stop - 1}")
        case set():
            hold("B3", type(value) is bytes and (not form or len(value) in form), f"no bytes of length {sorted(form)}")
        case str():
            hold("B3", type(value) is str and re.fullmatch(form, value), f"{value!r} does not match {form}")
        case (one, int(least), int(most)):
            hold("B3", type(value) is tuple and least <= len(value) <= most, f"no list of {least} to {most}")
            return tuple(read(one, each) for each in value)
        case list():
            hold("B3", type(value) is tuple and len(value) == len(form), f"no array of {len(form)}")
            return tuple(read(one, each) for one, each in zip(form, value, strict=True))
        case dict():
            return SimpleNamespace(**dict(zip(form, read(list(form.values()), value), strict=True)))
        case _:
            return form(value)
    return value


def key(value: object) -> bytes:
    return check_key(read({32}, value))


DIGEST, BYTES, NAME, DECIMAL = {32}, set(), r"[a-z0-9][a-z0-9._-]{0,62}", r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,12})?"
ROUND, PERCENT, MS = between(1, 2**40), between(0, 100), between(1, 86_400_000)
SIGNED = {"payload": BYTES, "signature": BYTES}
OPTIMIZER = {
    "name": "adamw|sgd", "learning_rate": DECIMAL, "beta1": DECIMAL, "beta2": DECIMAL, "epsilon": DECIMAL, "weight_decay": DECIMAL,
    "warmup_percent": PERCENT, "outer_rate": DECIMAL, "outer_momentum": DECIMAL,
}  # fmt: skip
EXCHANGE = {
    "codec": r"int16|int8|topk-[1-9][0-9]{0,3}-[2-8]", "residual_percent": PERCENT, "local_steps": between(1, 512),
    "max_rows": between(1, 1024), "target_batch": ROUND, "max_claim_samples": ROUND, "weight_cap": ROUND,
    "first_min_exponent": between(-200, 94),
    "first_open_ms": MS, "min_open_ms": MS, "max_open_ms": MS,
}  # fmt: skip
PRIVATE_DATA = {"classes": (r'[^./\\:*?"<>|][^/\\:*?"<>|]{0,63}', 2, 2048), "mirrored": between(0, 1), "credit_percent": between(1, 100)}
STRENGTH = between(0, 200)
RECIPE = {"first": STRENGTH, "last": STRENGTH, "smaller": STRENGTH, "decay": "matrices|all", "taught_percent": PERCENT}
SHARDS = {"list_root": DIGEST, "list_bytes": between(1, 2**23), "size_bytes": between(1, 7000 * 2**30), "train_shards": between(1, 6999)}
AUDIT_RULES = {
    "named": (key, 1, 16), "proven": (key, 0, 1024), "proven_after": between(1, 65_536), "audit_percent": between(1, 100),
    "newcomer_percent": between(1, 100), "kept_rounds": between(1, 1024), "pending_rounds": between(4, 2048),
    "pool_percent": between(0, 50),
}  # fmt: skip
ADMISSION_RULE = {"how": "open|invitation|list", "keys": (key, 0, 2048)}
MANIFEST = {
    "name": NAME, "task": "classification|stereo", "dataset": NAME, "data_digest": DIGEST, "supernet": NAME, "seed": between(0, 2**63 - 1),
    "algorithm": "data-parallel|model-parallel", "schedule": "sandwich|shrinking", "num_rounds": ROUND,
    "microbatch_samples": between(1, 65_536),
    "optimizer": OPTIMIZER, "initial_state": DIGEST, "exchange": EXCHANGE, "reward_pool": between(1, 2**48),
    "costs": ([r"(?s).{1,40}", between(0, 2**62 - 1)], 0, 4096), "operators": (key, 1, 7), "cohorts": "consent|affinity",
    "data": "shared|private", "private": (PRIVATE_DATA, 0, 1), "recipe": RECIPE, "shards": (SHARDS, 0, 1), "audits": (AUDIT_RULES, 0, 1),
    "admission": ADMISSION_RULE, "quorum": between(1, 7),
}  # fmt: skip
SIGNED_MANIFEST = {**SIGNED, "protocol": between(1, 65_536), "program": r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}"}
INDEX = between(0, 2**40 - 1)
CLAIM_STEP = {"first": INDEX, "last": INDEX, "skipped": (INDEX, 0, 64), "vector": DIGEST, "every": between(1, 32)}
STEP_MEAN = {"mean": DIGEST, "counted": between(1, 2**32 - 1)}
CLAIM = {
    "run": DIGEST, "round": ROUND, "base": DIGEST, "key": DIGEST, "payout": key, "founder": DIGEST, "cohort": NAME,
    "steps": (CLAIM_STEP, 1, 512),
    "work": (between(0, 2**32), 1, 32), "given": {0, 32}, "residual": {0, 32}, "microbatch_ms": between(1, 3_600_000),
    "shards": between(0, 6999),
    "partner": {0, 32},
}  # fmt: skip
CONTRIBUTION = {
    "run": DIGEST, "round": ROUND, "base": DIGEST, "founder": DIGEST, "claims": (DIGEST, 1, 32),
    "counted": between(1, 2**32 - 1), "steps": (STEP_MEAN, 1, 512), "body": DIGEST, "residual": {0, 32},
}  # fmt: skip
HEADER = {"contribution": SIGNED, "claims": (SIGNED, 1, 32)}
THRESHOLD = {"role": between(0, 7), "norm": between(0, 2**62 - 1), "samples": between(1, 2**48)}
ROUND_ENTRY = {
    "run": DIGEST, "round": ROUND, "base": DIGEST, "first": between(0, 2**62 - 1), "contributions": between(1, 1024), "weights": DIGEST,
    "mean": DIGEST, "state": DIGEST, "thresholds": (THRESHOLD, 0, 8), "min_exponent": between(-200, 94),
    "open_ms": MS,
}  # fmt: skip
ENTRY = {"kind": "[a-z]{1,16}", "body": BYTES}
RECEIPT = {"entry": BYTES, "index": between(0, 2**62), "proof": (DIGEST, 0, 64), "tree_head": r"(?s).*"}
INVITATION = {"run": DIGEST, "operator": key, "key": key, "keys": between(1, 2**20), "until_round": ROUND, "role": "guest|member|proven"}
ADMISSION = {"invitation": SIGNED, "key": key}
VERDICT = {
    "run": DIGEST, "auditor": key, "round": ROUND, "contribution": DIGEST, "outcomes": (between(0, 3), 1, 32), "by": key,
}  # fmt: skip
SETTLEMENT = {"run": DIGEST, "commit": DIGEST}
REVOCATION = {"run": DIGEST, "operator": DIGEST, "what": "peer|invitation", "target": DIGEST}
MAX_ENTRY, MAX_PAYLOAD, MAX_CLAIM, MAX_MANIFEST, MAX_HEADER = 65_535, 4000, 32_768, 262_144, 65_503


def unpack(form, data: bytes, max_bytes: int = MAX_PAYLOAD):
    return read(form, decode(data, max_bytes))


def digest_of(signed: SimpleNamespace) -> bytes:
    """The digest of a signed record: of its packed form."""
    return sha256(encode((signed.payload, signed.signature)))


# §3 Keys, digests and signatures

PROTOCOL, PROGRAM = 12, "0.1.0"
P = 2**255 - 19
_ORDER_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
LOW_ORDER = {0, 1, P - 1, _ORDER_8, P - _ORDER_8}


def work_of(claim: SimpleNamespace) -> tuple[int, ...]:
    """§4, §14: how many microbatches of each architecture the indices of a claim's steps are."""
    count, work, before = len(claim.work), [0] * len(claim.work), -1
    for step in claim.steps:
        trained = range(step.first, step.last + 1, step.every)
        in_order = before < step.first <= step.last and step.last in trained and step.every in (1, count)
        hold("E20", in_order and list(step.skipped) == sorted(set(step.skipped)), "indices")
        hold("E20", all(index in trained[1:-1] for index in step.skipped), "skipped indices")
        for number in range(min(len(trained), count)):
            work[(claim.base[0] + claim.key[0] + trained[number]) % count] += (len(trained) - number - 1) // count + 1
        for index in step.skipped:
            work[(claim.base[0] + claim.key[0] + index) % count] -= 1
        before = step.last
    return tuple(work)


def check_key(public: bytes) -> bytes:
    y = int.from_bytes(public, "little") & (2**255 - 1)
    hold("S1", y < P and y not in LOW_ORDER, public.hex()[:16])
    return public


def verify(public: bytes, message: bytes, signature: bytes, what: str) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(check_key(public)).verify(signature, message)
    except (InvalidSignature, ValueError) as error:
        raise Refused("S2", what) from error


def verify_record(kind: str, public: bytes, signed: SimpleNamespace) -> None:
    """Check the signature of a record of a kind."""
    verify(public, f"manta/{kind}/v{PROTOCOL}\n".encode() + signed.payload, signed.signature, f"a {kind} of {public.hex()[:16]}")


def opened(kind: str, form: dict, signer: str, signed: SimpleNamespace, public: bytes | None = None) -> SimpleNamespace:
    """The record in a signed one of a kind, which the key `public`, or that in its field `signer`, signed."""
    found = unpack(form, signed.payload, MAX_CLAIM if kind in ("claim", "contribution") else MAX_PAYLOAD)
    public = public or getattr(found, signer)
    verify_record(kind, public, signed)
    return found


# §4 The manifest


def open_manifest(data: bytes) -> tuple[bytes, SimpleNamespace]:
    """The run's id, and its manifest."""
    signed = unpack(SIGNED_MANIFEST, data, MAX_MANIFEST + 128)
    named = f"it names version {signed.protocol} and program {signed.program}, this verifier knows {PROTOCOL} and {PROGRAM}"
    hold("M1", (signed.protocol, signed.program) == (PROTOCOL, PROGRAM), named)
    m = unpack(MANIFEST, signed.payload, MAX_MANIFEST)
    verify_record("manifest", m.operators[0], signed)
    x, o, private, codec = m.exchange, m.optimizer, m.data == "private", Codec(m.exchange.codec)
    bits = codec.limit.bit_length() + codec.window - 1 + 4 + 16 + (x.max_rows - 1).bit_length()
    for why, holds in {
        "codec": codec.kept <= (2048 if codec.is_sparse else 4096),
        "optimizer": float(o.beta1) < 1 > float(o.beta2) and float(o.outer_rate) > 0 and float(o.outer_momentum) < 1,
        "epsilon": o.name == "sgd" or float(o.epsilon) > 0,
        "samples": m.microbatch_samples <= x.weight_cap <= x.max_claim_samples >= m.microbatch_samples * x.local_steps,
        "open_ms": x.min_open_ms <= x.first_open_ms <= x.max_open_ms,
        "sums that leave 62 bits": bits <= 62,
        "a gene that is priced twice": len(dict(m.costs)) == len(m.costs),
        "operators or quorum": len(set(m.operators)) == len(m.operators) and len(m.operators) // 2 < m.quorum <= len(m.operators),
        "private data": len(m.private) == private and not (private and (m.task == "stereo" or m.audits or m.shards)),
        "cohorts": not private or m.cohorts == "consent",
        "classes": all(
            len({name.casefold() for name in p.classes}) == len(p.classes)
            and all(name.isprintable() and name == name.strip() and is_normalized("NFC", name) for name in p.classes)
            for p in m.private
        ),
        "taught_percent": m.schedule == "sandwich" or m.recipe.taught_percent == 0,
        "unsorted keys": all(
            list(each) == sorted(set(each)) for each in (m.admission.keys, *(a.named for a in m.audits), *(a.proven for a in m.audits))
        ),
        "listed keys": bool(m.admission.keys) == (m.admission.how == "list"),
        "pending_rounds": all(a.pending_rounds >= a.kept_rounds + 3 for a in m.audits),
    }.items():
        hold("M2", holds, why)
    return sha256(signed.payload), m


# §5 Tree heads (C2SP signed-note, tlog-checkpoint, tlog-cosignature) and receipts


def from_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        data = b""
    hold("T1", text and base64.b64encode(data).decode() == text, "base64")
    return data


def key_id(name: str, kind: int, public: bytes) -> bytes:
    return sha256(name.encode() + b"\n" + bytes([kind]) + public)[:4]


def open_head(note: str, run: bytes, m: SimpleNamespace, quorum: int | None = None) -> tuple[int, bytes]:
    """Size and root in a note that `quorum` operators (None: as many as it takes to count) signed; other signatures are passed over."""
    hold("T1", len(note.encode()) <= 131_072 and not re.search(r"[\x00-\x09\x0b-\x1f]", note), "its size, or control characters")
    found = re.fullmatch(r"(([^\n]+)\n(0|[1-9][0-9]{0,18})\n([^\n]+)\n(?:[^\n]+\n)*)\n((?:— [^\s+]+ [^\s]+\n){1,100})", note)
    hold("T1", found, "not its lines")
    signed, origin, size, root, lines = found.groups()
    size, root, name, by, own = int(size), from_base64(root), f"manta/{run.hex()}", set(), False
    for line in lines.splitlines():
        _, signer, data = line.split(" ")
        data, witness = from_base64(data), re.fullmatch(r"manta/witness/([0-9a-f]{64})", signer)
        hold("T1", len(data) >= 5, "a signature that is too short")
        for operator in m.operators if signer == name else ():
            if data[:4] == key_id(name, 1, operator):
                verify(operator, signed.encode(), data[4:], "a tree head")
                by, own = by | {operator}, True
        if witness:
            public = bytes.fromhex(witness[1])
            hold("T1", data[:4] == key_id(signer, 4, public) and len(data) == 76, "a cosignature")
            verify(public, f"cosignature/v1\ntime {int.from_bytes(data[4:12], 'big')}\n{signed}".encode(), data[12:], "a cosignature")
            by = by | {public} & set(m.operators)
    hold("T2", origin == name and size <= 2**62 and len(root) == 32, f"it is of {origin}")
    hold("T2", own and len(by) >= (quorum or m.quorum), f"{len(by)} of {quorum or m.quorum} operators signed it")
    return size, root


def open_receipt(data: bytes, run: bytes, m: SimpleNamespace) -> tuple[int, bytes]:
    """The index and the entry that a receipt proves, under a head that counts."""
    receipt = unpack(RECEIPT, data, MAX_ENTRY + 8192)
    size, root = open_head(receipt.tree_head, run, m)
    with about("", "T5"):
        hold("T5", root_by_inclusion(leaf_hash(receipt.entry), receipt.index, size, receipt.proof) == root, "a receipt")
    return receipt.index, receipt.entry


# §6 What the log takes, and what it adds up to. §7 Pay

GOOD, UNPAID, DEMOTED, VOID = range(4)


@dataclass(frozen=True)
class Listed:
    """A contribution in a round; what is said of its claims is in their order."""

    digest: bytes
    founder: bytes
    round: int  # the one after its base
    age: int
    role: int
    cohort: str
    body: bytes
    keys: tuple[bytes, ...]
    payouts: tuple[bytes, ...]
    counted: int  # samples, uncapped
    samples: tuple[int, ...]  # of each claim, capped; 0: it is unpaid
    weights: tuple[int, ...]  # in the pay; 0: it is unpaid
    proven: tuple[bool, ...]  # the keys, when it was listed

    def without_pay(self, keys: set[bytes]) -> "Listed":
        """The same, where the claims of these keys are unpaid."""
        samples, weights = (tuple(0 if key in keys else each for key, each in zip(self.keys, of, strict=True))
                            for of in (self.samples, self.weights))  # fmt: skip
        return replace(self, samples=samples, weights=weights)


def paid_once(rows: list[Listed]) -> tuple[Listed, ...]:
    """A round's contributions with each key paid in one of them: in that which it founds, else in the first."""
    founders, before, found = {row.founder for row in rows}, set(), []
    for row in rows:
        found.append(row.without_pay({key for key in row.keys if key != row.founder and (key in founders or key in before)}))
        before |= set(row.keys)
    return tuple(found)


@dataclass(frozen=True)
class Committed:
    """A round of the log; round 0 is what the run begins with."""

    commit: bytes
    state: bytes
    min_exponent: int
    thresholds: tuple = ()
    entry: SimpleNamespace | None = None
    listed: tuple[Listed, ...] = ()


@dataclass
class Audit:
    """A contribution that was drawn."""

    round: int
    row: Listed
    auditor: bytes  # whose word that it is good counts
    verdicts: dict[bytes, SimpleNamespace]  # by auditor
    outcomes: tuple[int | None, ...]  # what it comes to so far, by claim


def number(what: str, beacon: bytes, contribution: bytes) -> int:
    return int.from_bytes(sha256(encode((what, beacon, contribution)))[:8], "big")


def drawn(rules: SimpleNamespace, beacon: bytes, rows, good: Counter) -> set[bytes]:
    """§6, draw: the digests of the contributions that are audited."""
    proven = [row for row in rows if any(row.proven)]
    others = sorted((row for row in rows if not any(row.proven)), key=lambda row: number("order", beacon, row.digest))
    found = {row.digest for row in proven if number("audit", beacon, row.digest) % 100 < rules.audit_percent}
    budget = rules.newcomer_percent * sum(row.counted for row in proven or others)
    for known in (True, False):
        part = budget // 2 if known else budget
        for row in others:
            if part > 0 and row.digest not in found and (not known or all(good[key] for key in row.keys)):
                if number("part", beacon, row.digest) % (100 * row.counted) < part:
                    found.add(row.digest)
                    budget -= 100 * row.counted if known else 0
                part -= 100 * row.counted
    return found


def share_out(pool: int, weights: dict[bytes, int], cap: int) -> dict[bytes, int]:
    """§7: a pool in shares, by largest remainder."""
    total = sum(weights.values())
    shares = {key: pool * weight // total for key, weight in weights.items() if total}
    for key in sorted(shares, key=lambda key: (-(pool * weights[key] % total), key))[: pool - sum(shares.values())]:
        shares[key] += 1
    return {key: min(share, cap) for key, share in shares.items()}


class Ledger:
    """The fold over a log's entries."""

    def __init__(self, run: bytes, m: SimpleNamespace) -> None:
        self.run, self.m, self.codec, self.training_spec, self.size = run, m, Codec(m.exchange.codec), TrainingSpec(m), 0
        self.rules, self.audits_steps = m.audits[0] if m.audits else None, bool(m.audits) and m.exchange.local_steps > 1
        self.rounds, self.is_settled = [Committed(run, m.initial_state, m.exchange.first_min_exponent)], False
        self.verdicts: dict[bytes, SimpleNamespace] = {}  # by digest; with `listed` what stands after the newest round's entry
        self.listed: list[Listed] = []
        always = (*m.operators, *m.admission.keys, *(key for rules in m.audits for key in (*rules.named, *rules.proven)))
        self.admitted, self.guests, self.out, self.void, self.used = set(always), set(), {}, set(), Counter()
        self.given = {key for rules in m.audits for key in rules.proven}
        self.good: Counter[bytes] = Counter()
        self.lost: dict[bytes, int] = {}
        self.guilty: set[bytes] = set()
        self.audits: dict[bytes, Audit] = {}
        self.unpaid: dict[int, tuple[Listed, ...]] = {}
        self.payouts: dict[bytes, bytes] = {}  # by key: the account that its newest claim names
        self.credits: Counter[bytes] = Counter()  # by account
        self.earned: Counter[bytes] = Counter()  # by key

    @property
    def round(self) -> int:
        return len(self.rounds) - 1

    @property
    def is_between_rounds(self) -> bool:
        return not self.verdicts and not self.listed

    def is_proven(self, key: bytes) -> bool:
        return not self.rules or (key not in self.guilty and (key in self.given or self.good[key] >= self.rules.proven_after))

    def append(self, data: bytes) -> None:
        """Take the next entry."""
        entry = unpack(ENTRY, data, MAX_ENTRY)
        forms = {"contribution": HEADER, "round": ROUND_ENTRY, "settlement": SETTLEMENT}
        forms |= dict.fromkeys(("admission", "revocation", "verdict"), SIGNED)
        hold("E1", entry.kind in forms, entry.kind)
        is_over = self.round == self.m.num_rounds
        hold("E2", not self.is_settled and (not is_over or (self.rules and entry.kind in ("verdict", "settlement"))), "the run is over")
        body = unpack(forms[entry.kind], entry.body, MAX_ENTRY)
        if entry.kind == "round":
            self.take_round(body, sha256(data))
        else:
            getattr(self, f"take_{entry.kind}")(body)
        self.size += 1

    def take_admission(self, signed: SimpleNamespace) -> None:
        hold("E2", self.is_between_rounds)
        said = unpack(ADMISSION, signed.payload)
        invitation = opened("invitation", INVITATION, "operator", said.invitation)
        opened("admission", ADMISSION, "key", signed, invitation.key)
        hold("E3", self.m.admission.how == "invitation")
        hold("E1", invitation.run == self.run, "an invitation to another run")
        hold("E4", invitation.operator in self.m.operators, "it is no operator's")
        hold("E5", said.key not in self.admitted and said.key not in self.out)
        hold("E4", invitation.key not in self.void, "it was taken back")
        hold("E4", self.round + 1 <= invitation.until_round, "it has ended")
        hold("E4", self.used[invitation.key] < invitation.keys, "it is used up")
        self.used[invitation.key] += 1
        self.admitted.add(said.key)
        self.guests |= {said.key} if invitation.role == "guest" else set()
        self.given |= {said.key} if invitation.role == "proven" else set()

    def take_revocation(self, signed: SimpleNamespace) -> None:
        hold("E2", self.is_between_rounds)
        said = opened("revocation", REVOCATION, "operator", signed)
        hold("E1", said.run == self.run)
        hold("E6", said.operator in self.m.operators, "not an operator's")
        hold("E3", self.m.admission.how != "open")
        if said.what == "peer":
            hold("E6", said.target in self.admitted and said.target not in self.m.operators, "not of a key that is in")
            self.admitted.discard(said.target)
            self.out[said.target] = self.round + 1
        else:
            hold("E3", self.m.admission.how == "invitation")
            hold("E6", said.target not in self.void, "not of an invitation that stands")
            self.void.add(said.target)

    def take_verdict(self, signed: SimpleNamespace) -> None:
        said, digest = opened("verdict", VERDICT, "auditor", signed), digest_of(signed)
        hold("E1", said.run == self.run)
        hold("E7", self.rules and said.auditor in self.rules.named)
        audit = self.audits.get(said.contribution)
        hold("E8", audit and audit.round == said.round)
        hold("E9", said.auditor not in audit.verdicts)
        hold("E10", len(said.outcomes) == len(audit.row.keys))
        is_late = self.round >= said.round + self.rules.kept_rounds
        hold("E11", is_late or (DEMOTED not in said.outcomes and (UNPAID not in said.outcomes or VOID in said.outcomes)))
        is_own, is_good = said.by == said.auditor, set(said.outcomes) == {GOOD}
        hold("E12", said.by not in audit.row.keys and (is_own or (is_good and self.is_proven(said.by))))
        hold("E2", not self.listed, "a verdict after a contribution")
        hold("E9", len(self.verdicts) < 2048 and (not self.verdicts or max(self.verdicts) < digest), "unsorted, or too many")
        self.verdicts[digest] = said

    def check_base(self, record: SimpleNamespace) -> None:
        hold("E1", record.run == self.run, "of another run")
        hold("E13", record.round <= self.round + 1 and record.base == self.rounds[record.round - 1].commit, "not a commit of this log")
        hold("E13", self.round + 1 - record.round <= 4, "too old")
        hold("E14", not any(self.training_spec.sorts_after(each) for each in range(record.round, self.round + 1)))

    def take_contribution(self, header: SimpleNamespace) -> None:
        said, m, cap = opened("contribution", CONTRIBUTION, "founder", header.contribution), self.m, self.m.exchange.weight_cap
        claims = [opened("claim", CLAIM, "key", signed) for signed in header.claims]
        hold("E25", len(self.listed) < m.exchange.max_rows, "too many")
        self.check_base(said)
        hold("E15", said.claims == tuple(map(digest_of, header.claims)))
        keys = tuple(claim.key for claim in claims)
        hold("E16", list(keys) == sorted(set(keys)) and said.founder in keys)
        cohort = claims[keys.index(said.founder)].cohort
        for claim in claims:
            same = (claim.run, claim.round, claim.base, claim.cohort) == (said.run, said.round, said.base, cohort)
            hold("E17", same and (claim.founder == said.founder or len(claims) == 1), claim.key.hex()[:16])
            self.check_claim(claim)
        unpaid = self.unpaid_in(said, claims)
        self.check_steps(said, claims)
        hold("E22", self.codec.is_sparse or not any(each.residual for each in (said, *claims)))
        hold("E25", not self.listed or self.listed[-1].founder < said.founder, "unsorted")
        samples, weights, costs = [], [], self.costs(said.round, cohort)
        for claim in claims:
            s = sum(claim.work) * m.microbatch_samples
            w = sum(microbatches * cost for microbatches, cost in zip(claim.work, costs, strict=True)) * m.microbatch_samples
            samples.append(min(s, cap))
            weights.append(w if s <= cap else w * cap // s)
        of_work = self.round + 1 - said.round, self.training_spec.role(said.round, cohort), cohort, said.body, keys
        payouts, counted = tuple(claim.payout for claim in claims), sum(sum(claim.work) for claim in claims) * m.microbatch_samples
        of_pay = payouts, counted, tuple(samples), tuple(weights), tuple(map(self.is_proven, keys))
        listed = Listed(digest_of(header.contribution), said.founder, said.round, *of_work, *of_pay)
        self.listed.append(listed.without_pay(unpaid))

    def check_claim(self, claim: SimpleNamespace) -> None:
        m, h = self.m, self.m.exchange.local_steps
        may_drop_out, is_whole = bool(m.audits) and claim.founder != claim.key, len(claim.steps) == h
        hold("E19", len(claim.steps) <= h and (is_whole or may_drop_out), "local steps")
        hold("E19", is_whole if claim.given else may_drop_out and not claim.residual, "what it gives")
        hold("E20", len(claim.work) == len(self.costs(claim.round, claim.cohort)), "architectures")
        hold("E20", claim.work == work_of(claim), "microbatches of other architectures than its indices are of")
        hold("E21", claim.shards == 0 or (m.shards and claim.shards < m.shards[0].train_shards), "shards")
        hold("E21", not claim.partner or (m.task == "stereo" and claim.partner != claim.key), "a partner")
        hold("E21", sum(claim.work) * m.microbatch_samples <= m.exchange.max_claim_samples, "samples")

    def unpaid_in(self, said: SimpleNamespace, claims: list[SimpleNamespace]) -> set[bytes]:
        """The keys whose claims stand unpaid: of members, where several local steps are audited."""
        newest, unpaid = [row for round in self.rounds[-5:] for row in round.listed if row.round == said.round], set()
        for claim in claims:
            key, may_be_unpaid = claim.key, self.audits_steps and claim.key != said.founder
            is_in = self.m.admission.how == "open" or key in self.admitted or self.round <= self.out.get(key, -1)
            is_in, is_new = is_in and key not in self.guests, not any(key in row.keys for row in newest)
            hold("E18", is_in or may_be_unpaid, key.hex()[:16])
            hold("E23", is_new or may_be_unpaid, "its work on this base is in the log")
            hold("E23", self.audits_steps or not any(key in row.keys for row in self.listed), "it stands twice in this round")
            unpaid |= {key} if may_be_unpaid and not (is_in and is_new and key not in self.guilty) else set()
        return unpaid

    def check_steps(self, said: SimpleNamespace, claims: list[SimpleNamespace]) -> None:
        h, bits = self.m.exchange.local_steps, [1 << place for place in range(len(claims))]
        own, giving = (sum(bit for bit, claim in zip(bits, claims, strict=True) if is_so(claim))
                       for is_so in (lambda claim: claim.key == said.founder, lambda claim: claim.given))  # fmt: skip
        have = [sum(bit for bit, claim in zip(bits, claims, strict=True) if len(claim.steps) > step) for step in range(h)]
        hold("E24", [step.counted for step in said.steps] == have, "who counted in a step")
        hold("E24", own & said.counted and not said.counted & ~giving, "who is in the body")
        hold("E24", said.counted == sum(bits) or self.audits_steps, "a claim that is not in the body")

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        with about("", "E31"):
            return self.training_spec.costs(round, cohort)

    def take_round(self, said: SimpleNamespace, commit: bytes) -> None:
        before, x, listed = self.rounds[-1], self.m.exchange, paid_once(self.listed)
        hold("E2", listed, "a round without contributions")
        hold("E1", said.run == self.run)
        hold("E26", said.round == self.round + 1 and said.base == before.commit)
        hold("E27", (said.first, said.contributions) == (self.size - len(listed), len(listed)))
        hold("E28", abs(said.min_exponent - before.min_exponent) <= 1)
        hold("E29", x.min_open_ms <= said.open_ms <= x.max_open_ms)
        roles = [each.role for each in said.thresholds]
        hold("B3", roles == sorted(set(roles)), "thresholds are sorted by role")
        self.rounds.append(Committed(commit, said.state, said.min_exponent, said.thresholds, said, listed))
        self.turn(commit, listed)

    def take_settlement(self, said: SimpleNamespace) -> None:
        hold("E2", self.round == self.m.num_rounds, "before the last round")
        hold("E1", said.run == self.run)
        hold("E30", said.commit == self.rounds[-1].commit)
        self.judge()
        for round in list(self.unpaid):
            self.pay(round)
        self.is_settled = True

    def turn(self, commit: bytes, listed: tuple[Listed, ...]) -> None:
        """What a round's entry does: it takes the verdicts before it, pays, and draws."""
        self.judge()
        self.unpaid[self.round], self.listed = listed, []
        self.payouts |= {key: payout for row in listed for key, payout in zip(row.keys, row.payouts, strict=True)}
        for round in [each for each in self.unpaid if each <= self.round - (self.rules.pending_rounds if self.rules else 0)]:
            self.pay(round)
        rows = self.unpaid.get(self.round - 1, ()) if self.rules else ()
        chosen = drawn(self.rules, commit, rows, self.good) if rows else ()
        for row in rows:
            others = [key for key in self.rules.named if key not in row.keys]
            if row.digest in chosen and others:
                auditor = others[number("auditor", commit, row.digest) % len(others)]
                self.audits[row.digest] = Audit(self.round - 1, row, auditor, {}, (None,) * len(row.keys))

    def judge(self) -> None:
        """Take the verdicts, of two by one auditor on one contribution the first."""
        for said in self.verdicts.values():
            audit = self.audits[said.contribution]
            if said.auditor not in audit.verdicts:
                audit.verdicts[said.auditor] = said
                before, audit.outcomes = audit.outcomes, tuple(self.outcome(audit, place) for place in range(len(audit.row.keys)))
                for key, weight, was, now in zip(audit.row.keys, audit.row.weights, before, audit.outcomes, strict=True):
                    if now is not None and now != was:
                        self.decide(key, was, now, weight)
        self.verdicts = {}

    def outcome(self, audit: Audit, place: int) -> int | None:
        """What a claim comes to: what more than half of the named auditors say at least, else good by the word of the one drawn."""
        said, quorum = sorted(verdict.outcomes[place] for verdict in audit.verdicts.values()), len(self.rules.named) // 2 + 1
        worst = said[-quorum] if len(said) >= quorum else GOOD
        own = audit.verdicts.get(audit.auditor)
        return worst if worst != GOOD else GOOD if own and own.outcomes[place] == GOOD else None

    def decide(self, key: bytes, was: int | None, now: int, weight: int) -> None:
        self.good[key] = max(0, self.good[key] + ((now == GOOD) - (was == GOOD) if weight else 0))
        if now >= DEMOTED:
            self.good[key], self.lost[key] = 0, self.round
            self.given.discard(key)
        self.guilty |= {key} if now == VOID else set()

    def pay(self, round: int) -> None:
        """§7: pay a round, once."""
        m, work, audited, accounts = self.m, {}, Counter(), {}
        for row in self.unpaid.pop(round):
            audit = self.audits.pop(row.digest, None) or Audit(round, row, b"", {}, (None,) * len(row.keys))
            accounts |= dict(zip(row.keys, row.payouts, strict=True))
            for key, weight, proven, outcome in zip(row.keys, row.weights, row.proven, audit.outcomes, strict=True):
                if weight and (outcome == GOOD or (outcome is None and proven and self.lost.get(key, -1) < round)):
                    work[key] = weight
            for said in audit.verdicts.values():
                audited[said.by] += row.counted if said.outcomes == audit.outcomes else 0
        for_audits = m.reward_pool * self.rules.pool_percent // 100 if self.rules else 0
        cap = -(-m.reward_pool * m.private[0].credit_percent // 100) if m.private else m.reward_pool
        for shares, paid in (
            (share_out(m.reward_pool - for_audits, work, cap), accounts),
            (share_out(for_audits, audited, for_audits), self.payouts),
        ):
            for key, amount in shares.items():
                if amount:
                    self.earned[key] += amount
                    self.credits[paid.get(key, key)] += amount


# All of it


def check_tree(files, ledger: Ledger, sizes: list[int]) -> tuple[int, bytes, int]:
    """§5: check what is stored and signed of the tree, and the proofs that follow; return the newest head, and how many proofs hold."""
    tree, count, proofs, newest = Tree(map(leaf_hash, files.entries)), len(files.entries), 0, None
    for name, level, first, data in files.nodes:
        with about(name):
            width = len(data) // 32
            hold("T4", width and (first + width) << level <= count and len(data) % 32 == 0)
            hold("T4", data == b"".join(tree.root(at << level, (at + 1) << level) for at in range(first, first + width)))
    if files.stored:
        complete = sum(count >> level for level in range(count.bit_length()))
        hold("T4", len(files.nodes) == complete, f"{len(files.nodes)} stored nodes of {complete}")
        run, operator, size, root = files.stored
        hold("T3", run == ledger.run and operator in ledger.m.operators and (size, root) == (count, tree.root(0, count)))
    for name, note in files.notes.items():
        with about(name):
            head = open_head(note, ledger.run, ledger.m, None if name == "checkpoint" else 1)
            hold("T3", head[0] <= count and head[1] == tree.root(0, head[0]))
            newest = newest or head
    size, root = newest
    for index in range(size):
        hold("T5", root_by_inclusion(tree.leaves[index], index, size, tree.inclusion(index, 0, size)) == root, f"entry {index}")
    for old in (each for each in sizes if each <= size):
        before, proof = tree.root(0, old), tree.consistency(old, 0, size)
        hold("T5", roots_by_consistency(old, size, proof, before) == (before, root), f"{old} and {size} entries")
        proofs += 1
    return size, root, size + proofs


def digest_of_state(state: State) -> bytes:
    """§13."""
    header = encode(("manta/state/v3", state.round, state.vectors[0].size, len(state.vectors) - 1, state.teacher))
    return tree_root([header, *(group for vector in state.vectors for group in vector_groups(vector))])


def check_rounds(folder: Path, ledger: Ledger) -> tuple[int, int, int]:
    """§12, §13, §16: check the bodies, means, snapshots and states that a folder has; return how many bodies, means and states hold."""
    n = sum(prod(weight.shape) for _, weight in weights_of(ledger.training_spec.space))
    bodies, means, states, state, mean = 0, 0, 0, None, None
    for number, round in enumerate(ledger.rounds):
        path, kept = folder / f"bodies/round-{number:08d}.bodies", folder / f"snapshots/round-{number:08d}.safetensors"
        mean = None
        if number and path.exists():
            with about(f"round {number}"):
                found = {digest_of(unpack(HEADER, header, MAX_HEADER).contribution): body for header, body in kept_bodies(path)}
                hold("D1", all(row.digest in found for row in round.listed), "one is missing")
                with about("", "D2"):
                    opened = [open_body(ledger.codec, found[row.digest], n) for row in round.listed]
                hold("D1", all(tree_root(body.groups) == row.body for body, row in zip(opened, round.listed, strict=True)), "another root")
                min_exponents = [ledger.rounds[row.round - 1].min_exponent for row in round.listed]
                found = left_by(round.listed, opened, min_exponents, ledger.rounds[number - 1], ledger.training_spec, ledger.codec, n)
                weighed = [(row.body, row.round, row.cohort, *each) for row, *each in zip(round.listed, *found.weights, strict=True)]
                hold("V1", tree_root(map(encode, weighed)) == round.entry.weights)
                hold("V2", tree_root(vector_groups(found.mean)) == round.entry.mean)
                said = [(each.role, (each.norm, each.samples)) for each in round.thresholds]
                hold("V3", (found.min_exponent, found.thresholds) == (round.min_exponent, said))
                mean = found.mean
                bodies, means = bodies + len(opened), means + 1
        state = state.after(mean, ledger.training_spec, ledger.rounds[number - 1].state) if state and mean is not None else None
        if state:
            with about(f"round {number}"):
                hold("U2", digest_of_state(state) == round.state)
                states += 1
        if kept.exists():
            with about(f"snapshots/{kept.name}", "U1"):
                state = State(*snapshot(kept))
                sizes = {vector.size for vector in state.vectors}
                hold("U1", state.round == number and sizes == {n} and digest_of_state(state) == round.state)
    return bodies, means, states


def verify_all(folder: Path, run: str | None = None, receipts: tuple[Path, ...] = ()) -> tuple[Ledger, list[str]]:
    """Return the ledger of a folder or an export of which everything holds, and what to say of it."""
    is_folder = (folder / "log.sqlite3").exists()
    if not is_folder and not (folder / "checkpoint").exists():
        raise BadInput(f"{folder} holds neither a log nor an export of one")
    with about("manifest.cbor"):
        identity, m = open_manifest(file_of(folder / "manifest.cbor"))
        hold("M3", run in (None, identity.hex()), identity.hex())
    if is_folder:
        with about("log.sqlite3", "T3"):
            files = open_folder(folder)
    else:
        with about("checkpoint", "T4"):
            files = open_export(folder, open_head(file_of(folder / "checkpoint").decode(), identity, m)[0])
    ledger, sizes = Ledger(identity, m), []
    for index, entry in enumerate(files.entries):
        with about(f"entry {index}"):
            ledger.append(entry)
        if ledger.is_between_rounds:
            sizes.append(index + 1)
    with about(f"entry {len(files.entries)}"):
        hold("E2", ledger.is_between_rounds, "the log ends in the middle of a round")
    with about("the tree"):
        size, root, proofs = check_tree(files, ledger, sizes)
    for path in receipts:
        with about(str(path)):
            index, entry = open_receipt(file_of(path), identity, m)
            hold("T3", index >= len(files.entries) or files.entries[index] == entry, "another entry than the log has")
    bodies, means, states = check_rounds(folder, ledger) if is_folder else (0, 0, 0)
    said = [
        f"run {identity.hex()}",
        f"{len(files.entries)} entries of {ledger.round} rounds hold, {size} of them under the signed head {root.hex()}",
        f"{proofs + len(receipts)} proofs hold",
        f"{bodies} bodies, {means} means and {states} next states hold, bit for bit",
        f"{sum(ledger.credits.values())} units of credit for {len(ledger.credits)} accounts",
    ]
    if not is_folder:
        said[3] = "an export has no bodies and no states"
    return ledger, said


def main() -> int:
    parser = argparse.ArgumentParser(description="Check a run's log without any of Manta's own code.")
    parser.add_argument("folder", type=Path, help="an aggregator's data folder of a run, or an export of its log")
    parser.add_argument("--run", metavar="ID", help="the id that the run has to have")
    parser.add_argument("--receipt", type=Path, action="append", default=[], help="a file with a receipt, to be checked too")
    asked = parser.parse_args()
    try:
        print("\n".join(verify_all(asked.folder, asked.run, tuple(asked.receipt))[1]))
    except Refused as refused:
        print(f"refused: {refused.where}: {refused}")
        return 1
    except (BadInput, ValueError) as error:
        print(f"verifier: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
