"""Records, for docs/verifier.py: the rules by their names, the encoding (§2 of docs/protocol.md), keys and signatures (§3), records and the
manifest (§4), tree heads and receipts (§5).

Imports nothing of Manta's. What breaks a rule is Refused, which says the rule.
"""

import base64
import hashlib
import re
from contextlib import contextmanager
from types import SimpleNamespace
from unicodedata import is_normalized

import cbor2
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from verifier_files import leaf_hash, root_by_inclusion
from verifier_values import Codec

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
    "T6": "beside a snapshot stands a head of a log that has its round",
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
    "D3": "a whole folder has the bodies of each round",
    "V1": "weights is the root of what each contribution weighs",
    "V2": "the mean is that of the bodies",
    "V3": "min exponent and thresholds follow from the bodies",
    "U1": "a snapshot is the state that the log names",
    "U2": "the next state follows from the state and the mean",
    "U3": "a whole folder has the states that all others follow from",
    "C1": "credits that are told are those that the log comes to",
    "C2": "a payout receipt is of a claim that its round counted, and of what it paid",
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
    "costs": ([r"(?s).{1,40}", between(0, 2**62 - 1)], 0, 4096), "operators": (key, 1, 7), "cohorts": "token|affinity",
    "data": "shared|private", "private": (PRIVATE_DATA, 0, 1), "recipe": RECIPE, "shards": (SHARDS, 0, 1), "audits": (AUDIT_RULES, 0, 1),
    "admission": ADMISSION_RULE, "quorum": between(1, 7),
}  # fmt: skip
SIGNED_MANIFEST = {**SIGNED, "protocol": between(1, 65_536), "program": r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}"}
INDEX = between(0, 2**40 - 1)
CLAIM_STEP = {"first": INDEX, "last": INDEX, "skipped": (INDEX, 0, 64), "vector": DIGEST, "every": between(1, 32)}
STEP_MEAN = {"mean": DIGEST, "included": between(1, 2**32 - 1)}
CLAIM = {
    "run": DIGEST, "round": ROUND, "base": DIGEST, "key": DIGEST, "payout": key, "founder": DIGEST, "cohort": NAME,
    "steps": (CLAIM_STEP, 1, 512),
    "work": (between(0, 2**32), 1, 32), "given": {0, 32}, "residual": {0, 32}, "microbatch_ms": between(1, 3_600_000),
    "shards": between(0, 6999),
    "partner": {0, 32},
}  # fmt: skip
CONTRIBUTION = {
    "run": DIGEST, "round": ROUND, "base": DIGEST, "founder": DIGEST, "claims": (DIGEST, 1, 32),
    "included": between(1, 2**32 - 1), "steps": (STEP_MEAN, 1, 512), "body": DIGEST, "residual": {0, 32},
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
INCLUDED = {"entry": BYTES, "index": between(0, 2**62), "proof": (DIGEST, 0, 64)}
LISTING = {"receipt": RECEIPT, "contribution": INCLUDED}
ROUND_CONTRIBUTIONS = {"entries": (BYTES, 1, 1024), "proof": (DIGEST, 0, 128)}
PAYOUT = {"listing": LISTING, "claim": SIGNED, "claims": (ROUND_CONTRIBUTIONS, 0, 1), "paid": (between(0, 2**63 - 1), 0, 1)}
INVITATION = {"run": DIGEST, "operator": key, "key": key, "keys": between(1, 2**20), "until_round": ROUND, "access": "guest|member|proven"}
ADMISSION = {"invitation": SIGNED, "key": key}
VERDICT = {
    "run": DIGEST, "auditor": key, "round": ROUND, "contribution": DIGEST, "outcomes": (between(0, 3), 1, 32), "by": key,
}  # fmt: skip
SETTLEMENT = {"run": DIGEST, "commit": DIGEST}
REVOCATION = {"run": DIGEST, "operator": DIGEST, "what": "peer|invitation", "target": DIGEST}
MAX_ENTRY, MAX_PAYLOAD, MAX_CLAIM, MAX_MANIFEST, MAX_HEADER, MAX_PAYOUT = 65_535, 4000, 32_768, 262_144, 65_503, 2**20 + 2**18


def unpack(form, data: bytes, max_bytes: int = MAX_PAYLOAD):
    return read(form, decode(data, max_bytes))


def digest_of(signed: SimpleNamespace) -> bytes:
    """The digest of a signed record: of its packed form."""
    return sha256(encode((signed.payload, signed.signature)))


# §3 Keys, digests and signatures

PROTOCOL, PROGRAM = 14, "0.1.0"
P = 2**255 - 19
_ORDER_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
LOW_ORDER = {0, 1, P - 1, _ORDER_8, P - _ORDER_8}


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
        "cohorts": not private or m.cohorts == "token",
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


def prove(receipt: SimpleNamespace, run: bytes, m: SimpleNamespace) -> tuple[int, bytes]:
    """The size and the root of the head, which counts, under which a receipt proves its entry."""
    size, root = open_head(receipt.tree_head, run, m)
    with about("", "T5"):
        hold("T5", root_by_inclusion(leaf_hash(receipt.entry), receipt.index, size, receipt.proof) == root, "a receipt")
    return size, root


def open_receipt(data: bytes, run: bytes, m: SimpleNamespace) -> tuple[int, bytes]:
    """The index and the entry that a receipt proves, under a head that counts."""
    receipt = unpack(RECEIPT, data, MAX_ENTRY + 8192)
    prove(receipt, run, m)
    return receipt.index, receipt.entry
