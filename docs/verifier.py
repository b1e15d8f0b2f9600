"""A second implementation of the log's rules, which imports nothing of Manta's: the executable companion of docs/protocol.md.

    python docs/verifier.py FOLDER_OR_EXPORT [--run ID] [--receipt FILE]

FOLDER is an aggregator's data folder of a run, EXPORT what `manta-aggregator ledger export` writes. Checked are the manifest and every
signature, the encoding, each entry against the rules, the tree with its signed heads and its proofs, and the credits; and where the folder
has bodies and snapshots, the mean and the next state of each round, bit for bit. Exit 0: all of it holds. Exit 1: one line says which entry
breaks which rule. Exit 2: there is nothing to check.

It needs cbor2, cryptography and numpy. "§6" is section 6 of docs/protocol.md; what it needs of docs/training.md is in verifier_values.py.
It does not check whether lots were trained as claims say; so in an audited run not what audits come to: verdicts, who is proven, and pay.
Nothing shows that a log is the newest one.
"""

import argparse
import base64
import hashlib
import re
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from math import isqrt, prod
from pathlib import Path
from types import SimpleNamespace

import cbor2
import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from verifier_files import BadInput, file_of, kept_bodies, open_export, open_folder, snapshot
from verifier_values import Body, Codec, Course, coverage, median, open_body, shifted, updated, weights_in_mean, weights_of

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
    "E2": "entries come in the order of the grammar, whole rounds, and none after the last round",
    "E3": "a base is a commit of this log, the one before the record's round, and at most 4 commits old",
    "E4": "no update sorted the channels since the base",
    "E5": "a contribution lists exactly the claims that come with it",
    "E6": "claims are strictly sorted by key, and the founder has one",
    "E7": "each claim has its contribution's base and cohort, and names its founder or stands alone",
    "E8": "each key was admitted, not as a guest, and not taken back",
    "E9": "a claim has the manifest's local steps and their lots, and a contribution says who counted in each",
    "E10": "a claim counts the architectures that its round asks for, shards that there are, and no more samples than allowed",
    "E11": "a key's work on one base counts once, and a key stands once in a round",
    "E12": "only a sparse codec leaves a residual",
    "E13": "a round's contributions are strictly sorted by founder, and at most max_rows",
    "A1": "an admission or a revocation stands between rounds, in a run that has it",
    "A2": "an admission is by an invitation that lets this key in now",
    "A3": "a revocation is an operator's, of a key that is in or of an invitation that stands",
    "X1": "extras are signed, of an audited run, strictly sorted by digest, at most 2048, and before a round's contributions",
    "R1": "a round follows the one before it: number and base",
    "R2": "a round names the places of the contributions right before it",
    "R3": "the floor moves by at most one exponent",
    "R4": "open_ms lies within the manifest's bounds",
    "C1": "the manifest prices every architecture",
    "D1": "a round's kept bodies are those of its contributions",
    "D2": "a body is exactly what its values are coded to",
    "V1": "weights is the root of what each contribution weighs",
    "V2": "the mean is that of the bodies",
    "V3": "floor and thresholds follow from the bodies",
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
    "codec": r"int16|int8|topk-[1-9][0-9]{0,3}-[2-8]", "residual_percent": PERCENT, "local_steps": between(1, 1024),
    "max_rows": between(1, 1024), "target_batch": ROUND, "max_claim_samples": ROUND, "weight_cap": ROUND, "first_floor": between(-200, 94),
    "first_open_ms": MS, "min_open_ms": MS, "max_open_ms": MS,
}  # fmt: skip
PRIVATE_DATA = {"classes": (r'[^./\\:*?"<>|][^/\\:*?"<>|]{0,63}', 2, 2048), "mirrored": between(0, 1), "credit_percent": between(1, 100)}
STRENGTH = between(0, 200)
RECIPE = {"first": STRENGTH, "last": STRENGTH, "smaller": STRENGTH, "decay": "matrices|all", "taught_percent": PERCENT}
SHARDS = {"list_root": DIGEST, "list_bytes": between(1, 2**23), "size_bytes": between(1, 2**63 - 1), "train_shards": between(1, 6999)}
TRUST = {
    "mode": "open|audited", "proven": (key, 0, 1024), "auditors": (key, 0, 16), "proven_samples": between(1, 2**48),
    "pending_rounds": between(1, 2048), "kept_rounds": between(1, 1024), "audit_percent": between(1, 100), "audit_lots": between(1, 8),
    "whole_percent": PERCENT, "audit_pool_percent": between(0, 50),
}  # fmt: skip
ADMISSION_RULE = {"how": "open|invitation|list", "keys": (key, 0, 2048)}
MANIFEST = {
    "name": NAME, "task": "classification|stereo", "dataset": NAME, "data_digest": DIGEST, "supernet": NAME, "seed": between(0, 2**63 - 1),
    "algorithm": "data-parallel|model-parallel", "schedule": "sandwich|shrinking", "num_rounds": ROUND, "lot_samples": between(1, 65_536),
    "optimizer": OPTIMIZER, "initial_state": DIGEST, "exchange": EXCHANGE, "reward_pool": between(1, 2**48),
    "costs": ([r"(?s).{1,40}", between(0, 2**62 - 1)], 0, 4096), "operators": (key, 1, 7), "cohorts": "consent|affinity",
    "data": "shared|private", "private": (PRIVATE_DATA, 0, 1), "recipe": RECIPE, "shards": (SHARDS, 0, 1), "trust": TRUST,
    "admission": ADMISSION_RULE, "quorum": between(1, 7),
}  # fmt: skip
SIGNED_MANIFEST = {**SIGNED, "protocol": between(1, 65_536), "program": r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}"}
INDEX = between(0, 2**40 - 1)
CLAIM_STEP = {"first": INDEX, "last": INDEX, "skipped": (INDEX, 0, 64), "vector": DIGEST, "every": between(1, 32)}
STEP_MEAN = {"mean": DIGEST, "counted": between(1, 2**32 - 1)}
CLAIM = {
    "run": DIGEST, "round": ROUND, "base": DIGEST, "key": DIGEST, "payout": key, "founder": DIGEST, "cohort": NAME,
    "steps": (CLAIM_STEP, 1, 512),
    "work": (between(0, 2**32), 1, 32), "lots_root": DIGEST, "steps_root": {0, 32}, "vector": DIGEST, "residual": {0, 32},
    "lot_ms": between(1, 3_600_000), "shards": between(0, 6999),
}  # fmt: skip
CONTRIBUTION = {
    "run": DIGEST, "round": ROUND, "base": DIGEST, "founder": DIGEST, "claims": (DIGEST, 1, 32),
    "counted": between(1, 2**32 - 1), "steps": (STEP_MEAN, 1, 1024), "body": DIGEST, "residual": {0, 32},
}  # fmt: skip
HEADER = {"contribution": SIGNED, "claims": (SIGNED, 1, 32)}
THRESHOLD = {"role": between(0, 7), "norm": between(0, 2**62 - 1), "samples": between(1, 2**48)}
ROUND_ENTRY = {
    "run": DIGEST, "round": ROUND, "base": DIGEST, "first": between(0, 2**62 - 1), "contributions": between(1, 1024), "weights": DIGEST,
    "mean": DIGEST, "state": DIGEST, "thresholds": (THRESHOLD, 0, 8), "floor": between(-200, 94),
    "open_ms": MS,
}  # fmt: skip
ENTRY = {"kind": "[a-z]{1,16}", "body": BYTES}
RECEIPT = {"entry": BYTES, "index": between(0, 2**62), "proof": (DIGEST, 0, 64), "tree_head": r"(?s).*"}
INVITATION = {"run": DIGEST, "operator": key, "key": key, "keys": between(1, 2**20), "until_round": ROUND, "role": "guest|member|proven"}
ADMISSION = {"invitation": SIGNED, "key": key}
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
    """§4, §14: how many lots of each architecture the indices of a claim's steps are."""
    count, work, before = len(claim.work), [0] * len(claim.work), -1
    for step in claim.steps:
        trained = range(step.first, step.last + 1, step.every)
        in_order = before < step.first <= step.last and step.last in trained and step.every in (1, count)
        hold("E9", in_order and list(step.skipped) == sorted(set(step.skipped)), "indices")
        hold("E9", all(index in trained[1:-1] for index in step.skipped), "skipped indices")
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
    x, o, t, private, codec = m.exchange, m.optimizer, m.trust, m.data == "private", Codec(m.exchange.codec)
    bits = codec.limit.bit_length() + codec.window - 1 + 4 + 16 + (x.max_rows - 1).bit_length()
    for why, holds in {
        "codec": codec.kept <= (2048 if codec.is_sparse else 4096),
        "optimizer": float(o.beta1) < 1 > float(o.beta2) and float(o.outer_rate) > 0 and float(o.outer_momentum) < 1,
        "epsilon": o.name == "sgd" or float(o.epsilon) > 0,
        "samples": m.lot_samples <= x.weight_cap <= x.max_claim_samples >= m.lot_samples * x.local_steps,
        "open_ms": x.min_open_ms <= x.first_open_ms <= x.max_open_ms,
        "sums that leave 62 bits": bits <= 62,
        "a gene that is priced twice": len(dict(m.costs)) == len(m.costs),
        "operators or quorum": len(set(m.operators)) == len(m.operators) and len(m.operators) // 2 < m.quorum <= len(m.operators),
        "private data": len(m.private) == private and not (private and (m.task == "stereo" or t.mode == "audited" or m.shards)),
        "cohorts": not private or m.cohorts == "consent",
        "taught_percent": m.schedule == "sandwich" or m.recipe.taught_percent == 0,
        "unsorted keys": all(list(keys) == sorted(set(keys)) for keys in (t.proven, t.auditors, m.admission.keys)),
        "listed keys": bool(m.admission.keys) == (m.admission.how == "list"),
        "pending_rounds": t.pending_rounds >= t.kept_rounds + 5,
    }.items():
        hold("M2", holds, why)
    return sha256(signed.payload), m


# §5 The tree, after RFC 9162 section 2.1


def leaf_hash(entry: bytes) -> bytes:
    return sha256(b"\0" + entry)


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right)


def split(size: int) -> int:
    """The largest power of two that is below a size."""
    return 1 << (size - 1).bit_length() - 1


class Tree:
    """A tree over leaf hashes."""

    def __init__(self, leaves) -> None:
        self.leaves, self._complete = list(leaves), {}

    def root(self, start: int, end: int) -> bytes:
        """The root over the leaves from `start` to before `end`; that of a complete subtree is computed once."""
        if end - start <= 1:
            return self.leaves[start] if end > start else sha256(b"")
        if (start, end) in self._complete:
            return self._complete[start, end]
        middle = start + split(end - start)
        found = node_hash(self.root(start, middle), self.root(middle, end))
        if (end - start) & (end - start - 1) == 0:
            self._complete[start, end] = found
        return found

    def inclusion(self, index: int, start: int, end: int) -> list[bytes]:
        """PATH of section 2.1.3.1."""
        if end - start == 1:
            return []
        middle = start + split(end - start)
        if index < middle:
            return [*self.inclusion(index, start, middle), self.root(middle, end)]
        return [*self.inclusion(index, middle, end), self.root(start, middle)]

    def consistency(self, old: int, start: int, end: int, is_old: bool = True) -> list[bytes]:
        """SUBPROOF of section 2.1.4.1; `old` counts from 0."""
        if old == end:
            return [] if is_old else [self.root(start, end)]
        middle = start + split(end - start)
        if old <= middle:
            return [*self.consistency(old, start, middle, is_old), self.root(middle, end)]
        return [*self.consistency(old, middle, end, False), self.root(start, middle)]


def tree_root(leaves) -> bytes:
    """The root over these leaves; every root of the documents is one of such a tree."""
    hashes = [leaf_hash(leaf) for leaf in leaves]
    return Tree(hashes).root(0, len(hashes))


def root_by_inclusion(leaf: bytes, index: int, size: int, proof) -> bytes:
    """The root that an inclusion proof leads to."""
    hold("T5", 0 <= index < size and bool(proof) == (size > 1), "an inclusion proof of another length")
    if size == 1:
        return leaf
    *rest, last = proof
    if index < split(size):
        return node_hash(root_by_inclusion(leaf, index, split(size), rest), last)
    return node_hash(last, root_by_inclusion(leaf, index - split(size), size - split(size), rest))


def roots_by_consistency(old: int, new: int, proof, known: bytes | None) -> tuple[bytes, bytes]:
    """The roots of the old and the new tree that a consistency proof leads to; `known` is the old root, None below its edge."""
    if old == new:
        hold("T5", len(proof) == (known is None), "a consistency proof of another length")
        return (known or proof[0],) * 2
    hold("T5", 0 < old < new and proof, "a consistency proof of another length")
    *rest, last = proof
    if old <= split(new):
        before, after = roots_by_consistency(old, split(new), rest, known)
        return before, node_hash(after, last)
    before, after = roots_by_consistency(old - split(new), new - split(new), rest, None)
    return node_hash(last, before), node_hash(last, after)


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
    hold("T5", root_by_inclusion(leaf_hash(receipt.entry), receipt.index, size, receipt.proof) == root, "a receipt")
    return receipt.index, receipt.entry


# §12 The mean of a round's bodies. §13 States


def vector_groups(vector: np.ndarray) -> list[bytes]:
    data = vector.astype("<f4").tobytes()
    return [data[start : start + 2**20] for start in range(0, len(data), 2**20)]


def check_mean(ledger: "Ledger", round: "Committed", bodies: list[Body], n: int) -> np.ndarray:
    """§12: return a round's mean; its weights, floor and thresholds are those of the entry too."""
    rows, before, course = round.listed, ledger.rounds[round.entry.round - 1], ledger.course
    floors = [ledger.rounds[row.round - 1].floor for row in rows]
    least = min(before.floor, *floors)
    norms = [body.norm << 2 * (floor - least) for body, floor in zip(bodies, floors, strict=True)]
    usual = {each.role: each for each in before.thresholds}

    def clipped(w: list[int]) -> list[int]:
        found = []
        for row, weight, norm in zip(rows, w, norms, strict=True):
            t, s = usual.get(row.role), sum(row.samples.values())
            if t and t.norm:
                limit = (4 * t.norm) ** 2 if s >= t.samples else (4 * t.norm) ** 2 * t.samples // s
                limit <<= 2 * (before.floor - least)
                weight = weight if norm <= limit else isqrt(weight * weight * limit // norm)
            found.append(weight)
        return found

    for unproven in ledger.guesses(rows):
        w = weights_in_mean(rows, unproven)
        c = clipped(w)
        weighed = [(row.body, row.round, row.cohort, *each) for row, *each in zip(rows, w, c, strict=True)]
        if tree_root(map(encode, weighed)) == round.entry.weights:
            break
    else:
        raise Refused("V1")
    is_of_parts = ledger.m.algorithm == "model-parallel" and ledger.m.exchange.local_steps > 1
    masks = [coverage(course.space, *course.architectures(row.round, row.cohort)) if is_of_parts else np.ones(n, bool) for row in rows]
    sums, totals = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for body, mask, floor, each, weight in zip(bodies, masks, floors, c, w, strict=True):
        sums[body.places] += (body.integers << (body.exponents + floor - least)) * each * mask[body.places]
        totals += weight * mask.astype(np.int64)
    mean = (sums.astype(np.float64) / np.maximum(totals, 1).astype(np.float64) * np.ldexp(1.0, least)).astype(np.float32)
    hold("V2", tree_root(vector_groups(mean)) == round.entry.mean)
    said = [(floor + body.highest, weight) for body, floor, weight in zip(bodies, floors, w, strict=True) if body.norm]
    wanted = median(said) - (16 if ledger.codec.is_sparse else 12) if said else before.floor - 1
    floor = min(max(before.floor + (wanted > before.floor) - (wanted < before.floor), -200), 94)
    found = {t.role: (min(shifted(t.norm, before.floor - floor), 2**62 - 1), t.samples) for t in before.thresholds}
    for role in {row.role for row in rows}:
        own = [(isqrt(shifted(norm, 2 * (least - floor))), sum(row.samples.values()), weight)
               for row, norm, weight in zip(rows, norms, w, strict=True) if row.role == role]  # fmt: skip
        found[role] = median([(norm, weight) for norm, _, weight in own]), median([(samples, weight) for _, samples, weight in own])
    hold("V3", floor == round.floor and sorted(found.items()) == [(t.role, (t.norm, t.samples)) for t in round.thresholds])
    return mean


@dataclass(frozen=True)
class State:
    """§13: weights and moments after a round."""

    round: int
    vectors: list[np.ndarray]
    teacher: bytes

    @property
    def digest(self) -> bytes:
        header = encode(("manta/state/v3", self.round, self.vectors[0].size, len(self.vectors) - 1, self.teacher))
        return tree_root([header, *(group for vector in self.vectors for group in vector_groups(vector))])

    def after(self, mean: np.ndarray, course: Course) -> "State":
        """§16: the next state."""
        vectors = updated(self.vectors, mean, course, self.round + 1)
        return State(self.round + 1, vectors, self.digest if self.round == course.teacher_round else self.teacher)


# §6 What the log takes. §7 Credits. §28 Admission


@dataclass(frozen=True)
class Listed:
    """A contribution in a round."""

    digest: bytes
    founder: bytes
    round: int  # the one after its base
    age: int
    role: int
    cohort: str
    body: bytes
    samples: dict[bytes, int]  # of each key's claim, capped
    rewards: dict[bytes, int]  # what each key's claim weighs in the rewards


@dataclass(frozen=True)
class Committed:
    """A round of the log; round 0 is what the run begins with."""

    commit: bytes
    state: bytes
    floor: int
    thresholds: tuple = ()
    entry: SimpleNamespace | None = None
    listed: tuple[Listed, ...] = ()


class Ledger:
    """The fold over a log's entries."""

    def __init__(self, run: bytes, m: SimpleNamespace) -> None:
        self.run, self.m, self.codec = run, m, Codec(m.exchange.codec)
        self.course = Course(m)
        self.rounds = [Committed(run, m.initial_state, m.exchange.first_floor)]
        self.size = 0
        self.extras: list[bytes] = []  # what stands after the newest round's entry
        self.listed: list[Listed] = []
        self.credits: Counter[bytes] = Counter()  # by account
        self.payouts: dict[bytes, bytes] = {}  # by key: the account that its newest claim names
        self.unproven: frozenset[bytes] = frozenset()
        always = (*m.operators, *m.trust.proven, *m.trust.auditors, *m.admission.keys)
        self.admitted, self.out, self.void, self.used = set(always), {}, set(), Counter()
        self.guests: set[bytes] = set()

    @property
    def round(self) -> int:
        return len(self.rounds) - 1

    @property
    def is_between_rounds(self) -> bool:
        return not self.extras and not self.listed

    def append(self, data: bytes) -> None:
        """Take the next entry."""
        entry = unpack(ENTRY, data, MAX_ENTRY)
        hold("E2", self.round < self.m.num_rounds, "the run is finished")
        kinds = {"admission": SIGNED, "revocation": SIGNED, "contribution": HEADER, "round": ROUND_ENTRY}
        kinds |= dict.fromkeys(("finding",), SIGNED)
        hold("E1", entry.kind in kinds, entry.kind)
        body = unpack(kinds[entry.kind], entry.body, MAX_ENTRY)
        if entry.kind == "round":
            self.take_round(body, sha256(data))
        elif entry.kind in ("admission", "revocation", "contribution"):
            getattr(self, f"take_{entry.kind}")(body)
        else:
            self.take_extra(entry.kind, body)
        self.size += 1

    def take_admission(self, signed: SimpleNamespace) -> None:
        hold("A1", self.is_between_rounds and self.m.admission.how == "invitation")
        said = unpack(ADMISSION, signed.payload)
        invitation = opened("invitation", INVITATION, "operator", said.invitation)
        opened("admission", ADMISSION, "key", signed, invitation.key)
        hold("E1", invitation.run == self.run, "an invitation to another run")
        hold("A2", invitation.operator in self.m.operators, "it is no operator's")
        hold("A2", said.key not in self.admitted and said.key not in self.out, "the key is in, or was taken back")
        hold("A2", invitation.key not in self.void, "the invitation was taken back")
        hold("A2", self.round + 1 <= invitation.until_round, "the invitation has ended")
        hold("A2", self.used[invitation.key] < invitation.keys, "the invitation is used up")
        self.used[invitation.key] += 1
        self.admitted.add(said.key)
        self.guests |= {said.key} if invitation.role == "guest" else set()

    def take_revocation(self, signed: SimpleNamespace) -> None:
        hold("A1", self.is_between_rounds and self.m.admission.how != "open")
        said = opened("revocation", REVOCATION, "operator", signed)
        hold("E1", said.run == self.run)
        hold("A3", said.operator in self.m.operators, "not an operator's")
        if said.what == "peer":
            hold("A3", said.target in self.admitted and said.target not in self.m.operators, "not of a key that is in")
            self.admitted.discard(said.target)
            self.out[said.target] = self.round + 1
        else:
            hold("A3", self.m.admission.how == "invitation" and said.target not in self.void, "not of an invitation that stands")
            self.void.add(said.target)

    def take_extra(self, kind: str, signed: SimpleNamespace) -> None:
        """§27. What an extra says is not checked here."""
        hold("X1", self.m.trust.mode == "audited" and not self.listed)
        payload = decode(signed.payload, MAX_PAYLOAD)
        run, public = read([DIGEST, DIGEST], payload[:2] if type(payload) is tuple else ())
        hold("X1", len(self.extras) < 2048 and run == self.run and (not self.extras or self.extras[-1] < digest_of(signed)))
        verify_record(kind, public, signed)
        self.extras.append(digest_of(signed))

    def check_base(self, record: SimpleNamespace) -> None:
        hold("E1", record.run == self.run, "of another run")
        hold("E3", record.round <= self.round + 1 and record.base == self.rounds[record.round - 1].commit, "not a commit of this log")
        hold("E3", self.round + 1 - record.round <= 4, "too old")
        hold("E4", not any(self.course.sorts_after(each) for each in range(record.round, self.round + 1)))

    def take_contribution(self, header: SimpleNamespace) -> None:
        said, x = opened("contribution", CONTRIBUTION, "founder", header.contribution), self.m.exchange
        claims = [opened("claim", CLAIM, "key", signed) for signed in header.claims]
        self.check_base(said)
        hold("E5", said.claims == tuple(map(digest_of, header.claims)))
        keys = [claim.key for claim in claims]
        hold("E6", keys == sorted(set(keys)) and said.founder in keys)
        cohort = claims[keys.index(said.founder)].cohort
        for claim in claims:
            same = (claim.run, claim.round, claim.base, claim.cohort) == (said.run, said.round, said.base, cohort)
            hold("E7", same and (claim.founder == said.founder or len(claims) == 1), claim.key.hex()[:16])
            self.check_claim(claim)
        self.check_steps(said, claims)
        hold("E12", self.codec.is_sparse or not any(each.residual for each in (said, *claims)))
        hold("E13", len(self.listed) < x.max_rows and (not self.listed or self.listed[-1].founder < said.founder))
        samples, rewards, costs = {}, {}, self.costs(said.round, cohort)
        self.payouts |= {claim.key: claim.payout for claim in claims}
        for claim in claims:
            s = sum(claim.work) * self.m.lot_samples
            w = sum(lots * cost for lots, cost in zip(claim.work, costs, strict=True)) * self.m.lot_samples
            samples[claim.key] = min(s, x.weight_cap)
            rewards[claim.key] = w if s <= x.weight_cap else w * x.weight_cap // s
        role, age = self.course.role(said.round, cohort), self.round + 1 - said.round
        self.listed.append(Listed(digest_of(header.contribution), said.founder, said.round, age, role, cohort, said.body, samples, rewards))

    def check_claim(self, claim: SimpleNamespace) -> None:
        m, x, lots = self.m, self.m.exchange, sum(claim.work)
        is_in = m.admission.how == "open" or claim.key in self.admitted or self.round <= self.out.get(claim.key, -1)
        hold("E8", is_in and claim.key not in self.guests, claim.key.hex()[:16])
        least = 1 if m.trust.mode == "audited" and claim.founder != claim.key else x.local_steps
        hold("E9", least <= len(claim.steps) <= x.local_steps and len(claim.steps_root) == (32 if len(claim.steps) > 1 else 0))
        hold("E10", len(claim.work) == len(self.costs(claim.round, claim.cohort)), "architectures")
        hold("E9", claim.work == work_of(claim), "lots of other architectures than its indices are of")
        hold("E10", claim.shards == 0 or (m.shards and claim.shards < m.shards[0].train_shards), "shards")
        hold("E10", lots * m.lot_samples <= x.max_claim_samples, "samples")
        newest = [row for round in self.rounds[-5:] for row in round.listed]
        hold("E11", not any(row.round == claim.round and claim.key in row.samples for row in newest), "its work on this base is in the log")
        hold("E11", not any(claim.key in row.samples for row in self.listed), "it stands twice in this round")

    def check_steps(self, said: SimpleNamespace, claims: list[SimpleNamespace]) -> None:
        """§6: the mean of each step, who counted in it, and who is in the body."""
        h, bits = self.m.exchange.local_steps, [1 << place for place in range(len(claims))]
        own = sum(bit for bit, claim in zip(bits, claims, strict=True) if claim.key == said.founder)
        have = [sum(bit for bit, claim in zip(bits, claims, strict=True) if len(claim.steps) > step) for step in range(h)]
        hold("E9", [step.counted for step in said.steps] == have and own & have[-1], "who counted in a step")
        hold("E9", own & said.counted and not said.counted & ~have[-1], "who is in the body")
        hold("E9", said.counted == sum(bits) or (self.m.trust.mode == "audited" and h > 1), "a claim that is not in the body")

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        with about("", "C1"):
            return self.course.costs(round, cohort)

    def take_round(self, said: SimpleNamespace, commit: bytes) -> None:
        before, x = self.rounds[-1], self.m.exchange
        hold("E2", self.listed, "a round without contributions")
        hold("E1", said.run == self.run)
        hold("R1", said.round == self.round + 1 and said.base == before.commit)
        hold("R2", (said.first, said.contributions) == (self.size - len(self.listed), len(self.listed)))
        hold("R3", abs(said.floor - before.floor) <= 1)
        hold("R4", x.min_open_ms <= said.open_ms <= x.max_open_ms)
        roles = [each.role for each in said.thresholds]
        hold("B3", roles == sorted(set(roles)), "thresholds are sorted by role")
        if self.m.trust.mode == "open":
            self.pay({key: weight for row in self.listed for key, weight in row.rewards.items()})
        self.rounds.append(Committed(commit, said.state, said.floor, said.thresholds, said, tuple(self.listed)))
        self.extras, self.listed = [], []

    def pay(self, weights: dict[bytes, int]) -> None:
        """§7: what a round pays."""
        pool, total = self.m.reward_pool, sum(weights.values())
        if total:
            shares = {key: pool * weight // total for key, weight in weights.items()}
            for key in sorted(weights, key=lambda key: (-(pool * weights[key] % total), key))[: pool - sum(shares.values())]:
                shares[key] += 1
            cap = -(-pool * self.m.private[0].credit_percent // 100) if self.m.private else pool
            for key, share in shares.items():
                self.credits[self.payouts[key]] += min(share, cap)

    def guesses(self, rows):
        """Which keys of a round may be unproven: audits say it, and the round's weights show it. In an open run all weigh alike."""
        if self.m.trust.mode == "open":
            return [frozenset()]
        keys = sorted({key for row in rows for key in row.samples})
        known = self.unproven & frozenset(keys)
        return (known ^ frozenset(flipped) for count in range(min(len(keys), 4) + 1) for flipped in combinations(keys, count))


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
        hold(
            "T3",
            run == ledger.run and operator in ledger.m.operators and (size, root) == (count, tree.root(0, count)),
            "as the database says",
        )
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


def check_rounds(folder: Path, ledger: Ledger) -> tuple[int, int, int]:
    """§12, §13, §16: check the bodies, means, snapshots and states that a folder has; return how many bodies, means and states hold."""
    n = sum(prod(weight.shape) for _, weight in weights_of(ledger.course.space))
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
                mean = check_mean(ledger, round, opened, n)
                bodies, means = bodies + len(opened), means + 1
        state = state.after(mean, ledger.course) if state and mean is not None else None
        if state:
            with about(f"round {number}"):
                hold("U2", state.digest == round.state)
                states += 1
        if kept.exists():
            with about(f"snapshots/{kept.name}", "U1"):
                state = State(*snapshot(kept))
                hold("U1", state.round == number and all(vector.size == n for vector in state.vectors) and state.digest == round.state)
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
    if m.trust.mode == "audited":
        said[4] = "not checked, for the run is audited: what audits came to, who is proven, and credits"
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
