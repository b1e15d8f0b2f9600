"""The small test vectors of docs/vectors/examples.json: each says what it is, and its value. Key, run and vectors have names in them.

``tests.docs.vectors`` writes the file; a test compares what is stored there with what the code computes.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.schedule import Plan, bound_macs
from manta_swarm.automl.training.update import State, state_digest, state_pieces
from manta_swarm.codec.coding import Body, body_groups, encode, group_sizes, parse
from manta_swarm.codec.mean import TableMean, table_mean
from manta_swarm.codec.residuals import left_over, vector_digest
from manta_swarm.codec.vectors import vector_groups
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.commands.tables import TableOffer
from manta_swarm.protocol.admission import Admission, AdmissionProof, Invitation, Revocation
from manta_swarm.protocol.affinity import PlacedPeer, Position, cohorts, first_name, tag_of
from manta_swarm.protocol.auditing import auditor_of, number
from manta_swarm.protocol.cohorts import NUM_SIZES, cohort_name, cohort_peer_proof, meeting_secret, sized_name
from manta_swarm.protocol.encoding import Value, pack, to_value
from manta_swarm.protocol.encoding import encode as encode_value
from manta_swarm.protocol.exchange import Exchange, next_open_ms
from manta_swarm.protocol.manifest import Manifest, Optimizer, SignedManifest
from manta_swarm.protocol.merkle import EMPTY_ROOT, leaf_hash, root
from manta_swarm.protocol.microbatches import microbatch_seed, sample_indices, work_of
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.private import PrivateData
from manta_swarm.protocol.records import (
    Announcement,
    Claim,
    ClaimStep,
    Contribution,
    Header,
    InclusionPromise,
    Round,
    StepMean,
    Threshold,
    commit_digest,
    entry_of,
)
from manta_swarm.protocol.rewards import architecture_cost, share_out
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, peer_name, sha256
from manta_swarm.protocol.table import (
    Weighed,
    Weighing,
    clipped_weight,
    limit_square,
    open_weighed,
    weighed_bytes,
    weights,
    weights_root,
)
from manta_swarm.protocol.verdicts import Verdict
from tests.codec import reference

DATASETS = ("digits", "layers", "motorcycle")
SPARSE, SPARSE_MIN_EXPONENT = "topk-512-4", -5
OPTIMIZER = Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0, "0.9", "0.5")
PLAN = Plan("classifier-tiny", "sandwich", "data-parallel", OPTIMIZER, 200, 0)
SHRINKING = Plan("classifier-tiny", "shrinking", "data-parallel", OPTIMIZER, 200, 0)
KEY, COHORT_PEER, ZEROS, COUNTING = Identity(bytes(range(32))), Identity(bytes(range(32, 64))), bytes(32), bytes(range(32))
EXCHANGE = Exchange("int16", 100, 1, 8, 64, 640, 80, -20, 1000, 100, 60_000)
MANIFEST = Manifest(
    name="test",
    task="classification",
    dataset="digits",
    data_digest=ZEROS,
    supernet="classifier-tiny",
    seed=0,
    algorithm="data-parallel",
    schedule="sandwich",
    num_rounds=4,
    microbatch_samples=16,
    optimizer=OPTIMIZER,
    initial_state=ZEROS,
    exchange=EXCHANGE,
    reward_pool=1000,
    costs=(("r32", 10), ("k3", 5)),
    operators=(KEY.public_key,),
    cohorts="token",
)
SIGNED_MANIFEST = SignedManifest.sign(MANIFEST, KEY)
RUN = SIGNED_MANIFEST.run
VECTOR = np.array([1, -2, 0.3, 0], np.float32)
MIN_EXPONENT = EXCHANGE.first_min_exponent


def packed_body(name: str, vector: NDArray[np.float32], min_exponent: int) -> tuple[bytes, bytes]:
    """Return a body and its root."""
    data = encode(name, vector, min_exponent)
    return data, root(leaf_hash(bytes(group)) for group in body_groups(name, data, len(vector)))


def vector_root(vector: NDArray[np.float32]) -> bytes:
    """Return the root over a vector's groups."""
    return root(leaf_hash(bytes(group)) for group in vector_groups(vector))


CLAIM = Claim(
    run=RUN,
    round=1,
    base=RUN,
    key=KEY.public_key,
    payout=KEY.public_key,
    founder=KEY.public_key,
    cohort="cohort-0",
    steps=(ClaimStep(0, 3, (), ZEROS),),
    work=(1, 1, 1, 1),
    given=ZEROS,
    residual=b"",
    microbatch_ms=250,
)
SIGNED_CLAIM = Signed.sign(CLAIM, KEY)
CONTRIBUTION = Signed.sign(
    Contribution(
        RUN,
        1,
        RUN,
        KEY.public_key,
        (SIGNED_CLAIM.digest,),
        1,
        (StepMean(vector_digest(VECTOR), 1),),
        packed_body("int16", VECTOR, MIN_EXPONENT)[1],
        b"",
    ),
    KEY,
)
COHORT_PEERS_STEP = ClaimStep(4, 4, (), ZEROS)
COHORT_PEERS_WORK = work_of(4, RUN, COHORT_PEER.public_key, [COHORT_PEERS_STEP])
COHORT_PEERS_CLAIM = Signed.sign(
    replace(CLAIM, key=COHORT_PEER.public_key, steps=(COHORT_PEERS_STEP,), work=COHORT_PEERS_WORK), COHORT_PEER
)
TOGETHER = tuple(signed.digest for signed in sorted((SIGNED_CLAIM, COHORT_PEERS_CLAIM), key=lambda signed: signed.open().key))
COHORTS = Signed.sign(replace(CONTRIBUTION.open(), claims=TOGETHER, included=3, steps=(StepMean(vector_digest(VECTOR), 3),)), KEY)

# A table on the commit of round 2, whose min exponent is -19; the two rounds before had -20.
TABLE_MIN_EXPONENT, THRESHOLD = -19, Threshold(0, 393_216, 64)
MIN_EXPONENTS, AGES, SAMPLES = (-19, -20, -20), (0, 1, 2), (64, 64, 16)
VECTORS = [np.array(values, np.float32) for values in ([1, -2, 0.3, 0], [0.5, -1, 0.25, 2**-12], [40, -30, 20, 10])]
BODIES = [packed_body("int16", vector, min_exponent) for vector, min_exponent in zip(VECTORS, MIN_EXPONENTS, strict=True)]
PARSED = [parse("int16", data, 4) for data, _ in BODIES]
WEIGHING = [Weighing(AGES[i], 0, SAMPLES[i]) for i in range(3)]
OUTCOME: TableMean = table_mean(WEIGHING, PARSED, MIN_EXPONENTS, [THRESHOLD], TABLE_MIN_EXPONENT, 4)
WEIGHED = [Weighed(BODIES[i][1], 3 - AGES[i], "cohort-0", OUTCOME.weights[i], OUTCOME.clipped[i]) for i in range(3)]
ROUND = Round(
    run=RUN,
    round=3,
    base=ZEROS,
    first=9,
    contributions=3,
    weights=weights_root(WEIGHED),
    mean=vector_root(OUTCOME.mean),
    state=ZEROS,
    thresholds=OUTCOME.thresholds,
    min_exponent=OUTCOME.min_exponent,
    open_ms=750,
)
COUNTED_UP = np.arange(262_145, dtype=np.float32)
PARAMETERS, NOTHING = torch.tensor([1.0, -2.0]), torch.zeros(2)
FIRST, TAUGHT = State(0, PARAMETERS, (NOTHING, NOTHING)), State(3, PARAMETERS, (NOTHING,), COUNTING)


def squares(parsed: list[Body]) -> list[int]:
    """Return the bodies' squared norms in units of 4^-20, the least min exponent."""
    return [body.norm_square << 2 * (min_exponent + 20) for body, min_exponent in zip(parsed, MIN_EXPONENTS, strict=True)]


def counted_weights() -> list[int]:
    """Return what each contribution of the table counts with."""
    limits = [limit_square(one, {0: THRESHOLD}) for one in WEIGHING]
    assert all(limit is not None for limit in limits)
    return [
        clipped_weight(weight, square, limit << 2 if limit is not None else None)
        for weight, square, limit in zip(weights(WEIGHING), squares(PARSED), limits, strict=True)
    ]


def travelling() -> str:
    """Return what is said of the weights' bytes."""
    data = weighed_bytes(WEIGHED)
    assert open_weighed(data, ROUND) == tuple(WEIGHED)
    return f"{len(data)}; `{sha256(data).hex()}`"


def numbers(values: object) -> str:
    """Return numbers with commas between them."""
    return ", ".join(map(str, values))  # type: ignore[call-overload]


def written(value: Value) -> str:
    """Return a record's value as the document writes it: nothing is left out, and known bytes have their names."""
    if isinstance(value, bytes):
        return {ZEROS: "Z", KEY.public_key: "key"}[value]
    return f"[{', '.join(map(written, value))}]" if isinstance(value, tuple) else json.dumps(value)


def rows() -> Iterator[tuple[str, str]]:
    """Yield each vector of the document that is computed fast: what it is, and its value."""
    microbatch = (0, ZEROS, 0, COUNTING, 0)
    yield 'CBOR of `["microbatch seed", 0, Z, 0, bytes 00..1f, 0]`', f"`{encode_value(('microbatch seed', *microbatch)).hex()}`"
    yield "its microbatch seed", str(microbatch_seed(*microbatch))
    yield "the first 8 samples of that microbatch, S = 1440", numbers(sample_indices(*microbatch, 1440, 8))
    yield "7 samples of that microbatch, S = 5", numbers(sample_indices(*microbatch, 5, 7))
    yield (
        "default cohort of host `example-host` (`host-` and 12 hex digits of its name's SHA-256)",
        f"`{cohort_name(None, 'example-host')}`",
    )
    yield f"manifest `{written(to_value(MANIFEST))}`: its id, *run*", f"`{RUN.hex()}`"
    yield "its signature", f"`{SIGNED_MANIFEST.signature.hex()}`"
    private = replace(MANIFEST, data="private", private=(PrivateData(("cat", "dog"), 1, 25),))
    yield (
        'the same with `"private", [[["cat", "dog"], 1, 25]]` in the place of `"shared", []`: its id; what a key earns in a round at most',
        f"`{SignedManifest.sign(private, KEY).run.hex()}`; {private.credit_cap}",
    )
    what = 'claim `[run, 1, run, key, key, key, "cohort-0", [[0, 3, [], Z, 1]], [1, 1, 1, 1], Z, "", 250, 0, ""]`: digest when signed'
    yield what, f"`{SIGNED_CLAIM.digest.hex()}`"
    yield "signature of the claim", f"`{SIGNED_CLAIM.signature.hex()}`"
    for name in ("int16", "int8"):
        data, body_root = packed_body(name, VECTOR, MIN_EXPONENT)
        values = numbers(f"{value:.12g}" for value in parse(name, data, 4).values(MIN_EXPONENT))
        yield f"body of (1, -2, 0.3, 0) in `{name}` on the min exponent -20; its values", f"`{data.hex()}`; {values}"
        yield f"root of that `{name}` body", f"`{body_root.hex()}`"
    yield (
        "contribution `[run, 1, run, key, [that claim's digest], 1, [[SHA-256 of (1, -2, 0.3, 0) in binary32, 1]], "
        'root of that int16 body, ""]`: digest when signed',
        f"`{CONTRIBUTION.digest.hex()}`",
    )
    yield "public key of the seed `202122...3f`, *cohort peer*", f"`{COHORT_PEER.public_key.hex()}`"
    yield (
        f'claim of *cohort peer*, with the account *key*, `[run, 1, run, cohort peer, key, key, "cohort-0", [[4, 4, [], Z, 1]], '
        f'{list(COHORT_PEERS_WORK)}, Z, "", 250, 0, ""]`: digest when signed',
        f"`{COHORT_PEERS_CLAIM.digest.hex()}`",
    )
    yield (
        "contribution of both claims, in the order of their keys, the bits being 3, otherwise the same: digest when signed",
        f"`{COHORTS.digest.hex()}`",
    )
    header = pack(Header(CONTRIBUTION, (SIGNED_CLAIM,)))
    yield "header of the first contribution, with its claim: length; SHA-256 of it packed", f"{len(header)}; `{sha256(header).hex()}`"
    inclusion_promise = Signed.sign(InclusionPromise(RUN, 1, CONTRIBUTION.digest), KEY)
    yield "signature of the inclusion promise `[run, 1, digest of that first contribution]`", f"`{inclusion_promise.signature.hex()}`"
    position = Position(1, b"h" * 16, b"", ((tag_of(COHORT_PEER.public_key), 3),))
    announcement = Announcement(RUN, KEY.public_key, "cohort-0", 1, 5, position, 4)
    what = 'announcement `[run, key, "cohort-0", 1, 5, [1, 16 times 68, "", [[tag of *cohort_peer*, 3]]], 4]`: SHA-256 of it packed'
    yield what, f"`{sha256(pack(announcement)).hex()}`"
    verdict = Signed.sign(Verdict(RUN, KEY.public_key, 1, CONTRIBUTION.digest, (0,), KEY.public_key), KEY)
    what = "verdict `[run, key, 1, digest of that first contribution, [0], key]`: digest when signed; its signature"
    yield what, f"`{verdict.digest.hex()}`; `{verdict.signature.hex()}`"
    yield 'number("audit") of the digest 00..1f, beacon Z', str(number("audit", ZEROS, COUNTING))
    auditor = auditor_of(ZEROS, COUNTING, (), sorted((KEY.public_key, COHORT_PEER.public_key)))
    yield (
        "of *key* and *cohort peer*, both named, whose word that it is good counts",
        "*key*" if auditor == KEY.public_key else "*cohort_peer*",
    )
    invitation = Signed.sign(Invitation(RUN, KEY.public_key, COHORT_PEER.public_key, 2, 3, "member"), KEY)
    yield 'signature of the invitation `[run, key, cohort_peer, 2, 3, "member"]`', f"`{invitation.signature.hex()}`"
    admission = Signed.sign(Admission(invitation, KEY.public_key), COHORT_PEER)
    yield "SHA-256 of the entry of *key*'s admission by it, which *cohort peer* signs", f"`{sha256(entry_of(admission)).hex()}`"
    shown = Signed.sign(AdmissionProof(RUN, KEY.public_key, COHORT_PEER.public_key, "member"), KEY)
    yield 'signature of the admission proof `[run, key, cohort_peer, "member"]`', f"`{shown.signature.hex()}`"
    revocation = Signed.sign(Revocation(RUN, KEY.public_key, "peer", COHORT_PEER.public_key), KEY)
    what = 'signature of the revocation `[run, key, "peer", cohort_peer]`; SHA-256 of its entry'
    yield what, f"`{revocation.signature.hex()}`; `{sha256(entry_of(revocation)).hex()}`"
    offer = Signed.sign(TableOffer(RUN, KEY.public_key, ZEROS, 100), KEY)
    yield "signature of the offer `[run, key, Z, 100]`", f"`{offer.signature.hex()}`"
    yield (
        "D after a round of D = 1000 with 144 samples and `microbatch_ms` 250, 20, 100, the exchange being the manifest's",
        str(next_open_ms(EXCHANGE, 1000, 144, (250, 20, 100))),
    )
    shares = share_out(1000, {b"a": 3, b"b": 3, b"c": 1})
    yield "a pool of 1000 shared among weights 3, 3, 1, in the order of keys", numbers(shares[key] for key in (b"a", b"b", b"c"))
    yield "root of the mean 0, 1, ..., 262144", f"`{vector_root(COUNTED_UP).hex()}`"
    yield (
        "sizes of the groups of 262,145 values in `int16`; in `int8`",
        f"{numbers(group_sizes('int16', 262_145))}; " + numbers(group_sizes("int8", 262_145)),
    )
    yield "root of the `int16` body of 0, 1, ..., 262144 on the min exponent -20", f"`{packed_body('int16', COUNTED_UP, -20)[1].hex()}`"
    yield (
        "pieces of the state of round 0, parameters (1, -2), two moments of 0",
        numbers(f"`{bytes(piece).hex()}`" for piece in state_pieces(FIRST)),
    )
    yield "its digest", f"`{state_digest(FIRST).hex()}`"
    yield (
        "header of the state of round 3, the same parameters, one moment of 0, teacher bytes 00..1f",
        f"`{bytes(state_pieces(TAUGHT)[0]).hex()}`",
    )
    yield "digest of that state", f"`{state_digest(TAUGHT).hex()}`"
    yield '`random.Random("0:1:2")`, first 32 bits', str(random.Random("0:1:2").getrandbits(32))
    yield "data-parallel, seed 0, round 1, third architecture", f"`{PLAN.architectures(1, 'any')[2].text}`"
    base = replace(PLAN, supernet="classifier-base")
    wide = base.architectures(1, "any")[2]
    yield "the same of `classifier-base`; its cost", f"`{wide.text}`; {architecture_cost(wide.text, dict(cost_table(base.space)))}"
    mine = Plan("classifier-tiny", "sandwich", "model-parallel", OPTIMIZER, 200, 0)
    yield (
        "model-parallel, seed 0, cohort `cohort-0`, round 1: role; architecture",
        (f"{mine.role(1, 'cohort-0')}; `{mine.architectures(1, 'cohort-0')[0].text}`"),
    )
    small = sized_name("cohort-0", 1)
    yield (
        f"the same of cohort `{small}`; of it in round 2",
        "; ".join(f"{mine.role(round_, small)}; `{mine.architectures(round_, small)[0].text}`" for round_ in (1, 2)),
    )
    yield (
        "MACs of `classifier-tiny` that sizes 1 to 4 allow",
        numbers(bound_macs(space_named("classifier-tiny"), size) for size in range(1, NUM_SIZES + 1)),
    )
    yield "`shrinking`, 200 rounds, data-parallel, seed 0, round 90, third architecture", f"`{SHRINKING.architectures(90, 'any')[2].text}`"
    yield (
        "phases of `shrinking`, `classifier-tiny`, 200 rounds",
        ", ".join(f"{one.name} {one.first}..{one.last}" for one in SHRINKING.phases),
    )


def contributions_list() -> Iterator[tuple[str, str]]:
    """Yield the vectors of the document's table of three contributions."""
    for place, one in enumerate(WEIGHING):
        values = numbers(f"{value:.12g}" for value in VECTORS[place])
        what = f"contribution {place}: age {one.age}, base's min exponent {MIN_EXPONENTS[place]}, {one.samples} samples"
        yield f"{what}; body of ({values})", f"`{BODIES[place][0].hex()}`"
    yield "weights w_i", numbers(weights(WEIGHING))
    held = [replace(WEIGHING[0], unproven=32), replace(WEIGHING[1], unproven=64), WEIGHING[2]]
    yield "weights w_i, if 32, 64 and 0 of their samples are unproven", numbers(weights(held))
    yield "n_i, in units of 4^-20", numbers(squares(PARSED))
    assert OUTCOME.clipped == tuple(counted_weights())
    yield "with the threshold (norm 393216, samples 64) of the entry before: c_i", numbers(counted_weights())
    yield "Weighed of contribution 0, packed", f"`{pack(WEIGHED[0]).hex()}`"
    yield "root of the weights", f"`{ROUND.weights.hex()}`"
    yield "the weights as they travel: length; SHA-256 of it", travelling()
    yield "the mean; its root", f"`{OUTCOME.mean.tobytes().hex()}`; `{ROUND.mean.hex()}`"
    (threshold,) = OUTCOME.thresholds
    yield "the new min exponent; the new threshold (norm, samples)", f"{OUTCOME.min_exponent}; {threshold.norm}, {threshold.samples}"
    yield (
        "digest of the commit `[run, 3, Z, 9, 3, root of the weights, that mean's root, Z, "
        f"[[0, {threshold.norm}, 64]], {OUTCOME.min_exponent}, 750]`",
        f"`{commit_digest(entry_of(ROUND)).hex()}`",
    )


def near_rows() -> Iterator[tuple[str, str]]:
    """Yield the vectors of how cohort peers find each other, and of what they show."""
    proof = cohort_peer_proof(b"\xaa" * 32, ZEROS, "cohort-0", KEY.public_key, COHORT_PEER.public_key)
    yield "proof of the token `aaaa...aa` for run Z, cohort `cohort-0`, from key to *cohort peer*", f"`{proof.hex()}`"
    endpoint = MemoryNetwork().endpoint(KEY.public_key)
    meeting = Neighbours(endpoint, ZEROS, secret=meeting_secret(b"\xaa" * 32, ZEROS))._meeting("cohort-0")
    yield "where that cohort meets: the last part of the name (section 8)", f"`{meeting.rpartition('-')[2]}`"
    near = [((tag_of(COHORT_PEER.public_key), 3),), ()]
    placed = [
        PlacedPeer(who.public_key, first_name(who.public_key), Position(1, b"", b"", at))
        for who, at in zip((KEY, COHORT_PEER), near, strict=True)
    ]
    yield "tag of *key*; its cohort while it knows nobody", f"`{tag_of(KEY.public_key).hex()}`; `{placed[0].cohort}`"
    cohort_peer = first_name(COHORT_PEER.public_key)
    names = cohorts(placed)
    what = f"the cohort of both, where *key* names the tag of *cohort peer* with step 3, *cohort peer*'s first one being `{cohort_peer}`"
    assert len(set(names.values())) == 1
    yield what, f"`{names[COHORT_PEER.public_key]}`"


def example(second: float, elsewhere: float) -> tuple[NDArray[np.float32], bytes]:
    values = np.full(16, elsewhere, np.float32)
    values[[3, 11]] = -0.875, second
    return values, encode(SPARSE, values, SPARSE_MIN_EXPONENT)


def rounded(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def sparse_fields(data: bytes) -> tuple[str, str]:
    """Positions and integers of an example."""
    (block,) = parse(SPARSE, data, 16).blocks()
    assert block.positions is not None
    return rounded(block.positions[0]), rounded(block.integers[0])


def sparse_rows() -> list[tuple[str, str]]:
    values, data = example(0.78, 0.1)
    body = parse(SPARSE, data, 16)
    positions, integers = sparse_fields(data)
    low, high = reference.sparse_fields(16, [3, 11])
    codes = " ".join(reference.number(code, 4) for code in (-7 + 7, 6 + 7))
    decoded, left = body.values(SPARSE_MIN_EXPONENT), left_over(values, body, SPARSE_MIN_EXPONENT)
    _, hollow = example(0.05, 0.0)
    return [
        ("a chunk of 16 values: -0.875 at 3, 0.78 at 11, 0.1 elsewhere", f"`{data.hex()}`"),
        ("its exponent; positions; integers", f"{body.max_exponent}; {positions}; {integers}"),
        ("its low bits, high bits, integers, in the order in which they are written", f"{low[:3]} {low[3:]}; {high}; {codes}"),
        ("what it decodes to at 3, at 11, elsewhere", rounded(decoded[[3, 11, 0]])),
        ("what is left at 3, at 11, elsewhere, rounded to 6 digits", rounded(left[[3, 11, 0]])),
        (
            "-0.875 at 3, 0.05 at 11, which is coded to 0, 0 elsewhere: bytes; positions; integers",
            "; ".join((f"`{hollow.hex()}`", *sparse_fields(hollow))),
        ),
    ]


def names() -> Iterator[tuple[str, str]]:
    """Yield what the names in the other vectors stand for, and an empty log's signed head."""
    yield "Z", "32 zero bytes"
    yield "key: the public key of the seed 000102...1f", KEY.public_key.hex()
    yield "its peer id", peer_name(KEY.public_key)
    head = TreeHead(origin(ZEROS), 0, EMPTY_ROOT)
    yield "signed head of the empty log of run Z by key", sign_tree_head(head, head.origin, KEY)
    for name in DATASETS:
        yield f"digest of the data set {name}", load_dataset(name).digest.hex()


def examples() -> dict[str, list[dict[str, str]]]:
    """Return all of them, by what they are about."""
    groups: dict[str, Iterable[tuple[str, str]]] = {
        "names": names(),
        "records": rows(),
        "sparse chunk: n = 16, min exponent -5, topk-512-4": sparse_rows(),
        "a table on the commit of round 2: role 0, cohort-0, min exponents of rounds 0, 1, 2: -20, -20, -19": contributions_list(),
        "cohorts": near_rows(),
    }
    return {name: [{"what": plain(what), "value": plain(value)} for what, value in group] for name, group in groups.items()}


def plain(text: str) -> str:
    """Return a text without the marks of a document."""
    return re.sub("[`*]", "", text)
