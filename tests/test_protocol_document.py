"""docs/protocol.md and docs/training.md against the code: the table of search spaces and the vectors are those that it computes."""

import dataclasses
import importlib
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import SearchSpace, space_named
from manta_swarm.automl.training.cohort_sizes import bound_macs
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import State, known_digest, state_digest, state_pieces
from manta_swarm.codec.coding import Body, body_groups, encode, group_sizes, parse
from manta_swarm.codec.mean import Sum
from manta_swarm.codec.outcome import Outcome, outcome
from manta_swarm.codec.residuals import vector_digest
from manta_swarm.codec.vectors import vector_groups
from manta_swarm.network import log_client, log_proofs
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.commands.tables import TableOffer
from manta_swarm.peer.sync.split_view_monitor import MAX_HISTORIES_BYTES
from manta_swarm.protocol import auditing
from manta_swarm.protocol.admission import Admission, AdmissionProof, Invitation
from manta_swarm.protocol.affinity import Placed, Position, cohorts, first_name, tag_of
from manta_swarm.protocol.cohorts import cohort_name, cohort_peer_proof, meeting_secret
from manta_swarm.protocol.draws import auditor_of, number
from manta_swarm.protocol.encoding import Value, pack, to_value
from manta_swarm.protocol.encoding import encode as encode_value
from manta_swarm.protocol.evaluations import MAX_QUESTION_BYTES, MAX_WORD_BYTES
from manta_swarm.protocol.exchange import Exchange, next_open_ms
from manta_swarm.protocol.manifest import Manifest, Optimizer, SignedManifest
from manta_swarm.protocol.merkle import EMPTY_ROOT, leaf_hash, root
from manta_swarm.protocol.microbatches import microbatch_seed, sample_indices, work_of
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.private import PrivateData
from manta_swarm.protocol.records import (
    MAX_HEADER_BYTES,
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
from manta_swarm.protocol.revocation import Revocation
from manta_swarm.protocol.rewards import architecture_cost, share_out
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, peer_name, sha256
from manta_swarm.protocol.sizes import NUM_SIZES, sized_name
from manta_swarm.protocol.table import (
    MAX_WEIGHED_BYTES,
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
from manta_swarm.protocol.versions import PROGRAM, PROTOCOL

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENT = (DOCS / "protocol.md").read_text(encoding="utf-8")
TRAINING = (DOCS / "training.md").read_text(encoding="utf-8")
SPACES = [space_named(name) for name in ("classifier-tiny", "classifier-base", "stereo-tiny", "stereo-base")]
DATASETS = ("digits", "layers", "motorcycle")
OPTIMIZER = Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0, "0.9", "0.5")
PLAN = Plan("classifier-tiny", "sandwich", "data-parallel", OPTIMIZER, 200, 0)
SHRINKING = Plan("classifier-tiny", "shrinking", "data-parallel", OPTIMIZER, 200, 0)

BLOCKS = {  # records that the document has as a block of fields, by the module that has them
    "manta_swarm.protocol.admission": "AdmissionRule Invitation Admission",
    "manta_swarm.protocol.affinity": "Position",
    "manta_swarm.protocol.auditing": "Placed AskWanted WantedOf Wanted Page AskVector AskAssignments Needed Assignment Assignments "
    "Need Finding",
    "manta_swarm.protocol.earnings": "RoundContributions",
    "manta_swarm.protocol.exchange": "Exchange",
    "manta_swarm.protocol.manifest": "SignedManifest Manifest Optimizer",
    "manta_swarm.protocol.measures": "Measure",
    "manta_swarm.peer.commands.tables": "TableOffer",
    "manta_swarm.protocol.private": "PrivateData",
    "manta_swarm.protocol.recipe": "Recipe",
    "manta_swarm.protocol.records": "Announcement Entry ClaimStep Claim StepMean Contribution Header Threshold Round InclusionPromise "
    "Receipt Included Listing",
    "manta_swarm.protocol.revocation": "Revocation",
    "manta_swarm.protocol.shards": "TravellingShards",
    "manta_swarm.protocol.table": "Weighed",
    "manta_swarm.protocol.verdicts": "AuditRules Verdict Settlement",
    "manta_swarm.network.log_client": "CreditWord",
}
TOLD = {  # records that the document tells in a sentence
    "manta_swarm.peer.features.two_views.partner": "Site",
    "manta_swarm.peer.features.two_views.views": "MicrobatchName Begin",
    "manta_swarm.protocol.admission": "AdmissionProof",
    "manta_swarm.protocol.evaluations": "Question Result Answer EvaluationWord",
    "manta_swarm.protocol.histories": "Histories",
    "manta_swarm.protocol.light": "Welcome EnterRequest LeaseRequest Lease LeaseAnswer LightReturn LightWord",
    "manta_swarm.protocol.revocation": "AskRevoked Revoked",
    "manta_swarm.network.blobs": "ProvenPiece",
    "manta_swarm.network.invitation": "Token",
    "manta_swarm.network.light_pay": "LightPay",
    "manta_swarm.network.pushes": "BodyOffer Shown Push Heard",
    "manta_swarm.network.wrong_group": "WrongGroup",
}


def named(modules: dict[str, str]) -> list[type]:
    """Return the records of these names."""
    return [getattr(importlib.import_module(module), name) for module, names in modules.items() for name in names.split()]


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
    cohorts="consent",
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
COHORTS = Signed.sign(replace(CONTRIBUTION.open(), claims=TOGETHER, counted=3, steps=(StepMean(vector_digest(VECTOR), 3),)), KEY)

# A table on the commit of round 2, whose min exponent is -19; the two rounds before had -20.
TABLE_FLOOR, THRESHOLD = -19, Threshold(0, 393_216, 64)
MIN_EXPONENTS, AGES, SAMPLES = (-19, -20, -20), (0, 1, 2), (64, 64, 16)
VECTORS = [np.array(values, np.float32) for values in ([1, -2, 0.3, 0], [0.5, -1, 0.25, 2**-12], [40, -30, 20, 10])]
BODIES = [packed_body("int16", vector, min_exponent) for vector, min_exponent in zip(VECTORS, MIN_EXPONENTS, strict=True)]
PARSED = [parse("int16", data, 4) for data, _ in BODIES]
WEIGHING = [Weighing(AGES[i], 0, SAMPLES[i]) for i in range(3)]
OUTCOME: Outcome = outcome(WEIGHING, PARSED, MIN_EXPONENTS, [THRESHOLD], TABLE_FLOOR, 4)
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
    yield "proof of the token `aaaa...aa` for run Z, cohort `cohort-0`, from the key of section 19 to *cohort peer*", f"`{proof.hex()}`"
    endpoint = MemoryNetwork().endpoint(KEY.public_key)
    meeting = Neighbours(endpoint, ZEROS, secret=meeting_secret(b"\xaa" * 32, ZEROS))._meeting("cohort-0")
    yield "where that cohort meets: the last part of the name (section 8)", f"`{meeting.rpartition('-')[2]}`"
    near = [((tag_of(COHORT_PEER.public_key), 3),), ()]
    placed = [
        Placed(who.public_key, first_name(who.public_key), Position(1, b"", b"", at))
        for who, at in zip((KEY, COHORT_PEER), near, strict=True)
    ]
    yield "tag of *key*; its cohort while it knows nobody", f"`{tag_of(KEY.public_key).hex()}`; `{placed[0].cohort}`"
    cohort_peer = first_name(COHORT_PEER.public_key)
    names = cohorts(placed)
    what = f"the cohort of both, where *key* names the tag of *cohort peer* with step 3, *cohort peer*'s first one being `{cohort_peer}`"
    assert len(set(names.values())) == 1
    yield what, f"`{names[COHORT_PEER.public_key]}`"


def search_space_row(space: SearchSpace) -> str:
    """Return a space as its table has it."""
    resolutions, stem = (", ".join(map(str, values)) for values in (space.resolutions, (space.stem_width,)))
    widths = " / ".join(", ".join(map(str, unit.widths)) for unit in space.units if unit.widths) or ", ".join(map(str, space.widths))
    choices = [[", ".join(map(str, getattr(unit, what))) for unit in space.units] for what in ("depths", "kernels", "expansions")]
    each = [texts[0] if len(set(texts)) == 1 else " / ".join(texts) for texts in choices]
    channels, classes, disparities = space.image_channels, space.num_classes or "-", space.num_disparities or "-"
    cells = [f"`{space.name}`", space.task, resolutions, widths, stem, *each, channels, classes, disparities]
    return f"| {' | '.join(map(str, cells))} |"


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_the_search_spaces_are_those_of_the_document(space: SearchSpace) -> None:
    assert search_space_row(space) in TRAINING
    assert f"{build(space).num_weights:,} for `{space.name}`" in " ".join(TRAINING.split())


@pytest.mark.parametrize(("what", "value"), [*rows(), *contributions_list(), *near_rows()])
def test_a_vector_is_that_of_the_document(what: str, value: str) -> None:
    assert f"| {what} | {value} |" in DOCUMENT


@pytest.mark.parametrize("name", DATASETS)
def test_the_data_sets_are_those_of_the_document(name: str) -> None:
    assert f"| digest of the data set `{name}` | `{load_dataset(name).digest.hex()}` |" in DOCUMENT


def test_the_document_has_no_other_vector() -> None:
    _, _, rest = DOCUMENT.partition("## 19. Test vectors")
    shown = [line for line in rest.split("\n") if line.startswith("| ") and line != "| what | value |"]
    assert len(shown) == len([*rows(), *contributions_list(), *near_rows(), *DATASETS])


def test_the_key_the_self_test_and_the_empty_log_are_those_of_the_document() -> None:
    head = TreeHead(origin(ZEROS), 0, EMPTY_ROOT)
    assert KEY.public_key.hex() in DOCUMENT
    assert peer_name(KEY.public_key) in DOCUMENT
    assert known_digest() in TRAINING
    assert f"```\n{sign_tree_head(head, head.origin, KEY)}```" in DOCUMENT


def blocks() -> dict[str, list[str]]:
    """Return the names of the fields of each record that stands in a block of code: its name, then lines that begin with two spaces."""
    found: dict[str, list[str]] = {}
    for block in re.findall(r"^```\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL):
        for name, fields in re.findall(r"^([A-Z]\w+)\b[^\n]*\n((?: {2}\w[^\n]*\n| {30,}[^\n]*\n)+)", block, re.MULTILINE):
            assert name not in found
            found[name] = re.findall(r"^  (\w+)", fields, re.MULTILINE)
    return found


@pytest.mark.parametrize("record", named(BLOCKS), ids=lambda record: record.__name__)
def test_a_block_of_fields_has_those_of_its_record_in_their_order(record: type) -> None:
    assert blocks()[record.__name__] == [field.name for field in dataclasses.fields(record)]


def test_the_document_has_no_other_blocks() -> None:
    assert sorted(blocks()) == sorted(name for names in BLOCKS.values() for name in names.split())


def in_order(words: Iterable[str], text: str) -> bool:
    """Return whether the words stand in a text, one after the other."""
    for word in words:
        found = re.search(rf"\b{word}\b", text)
        if found is None:
            return False
        text = text[found.end() :]
    return True


@pytest.mark.parametrize("record", named(TOLD), ids=lambda record: record.__name__)
def test_a_record_that_is_told_in_a_sentence_has_all_of_its_fields_there_in_their_order(record: type) -> None:
    """Up to where the next record begins; what the record has no field for is not found out."""
    told = [re.split(r"\*\*[A-Z]|\n\n", each)[0] for each in DOCUMENT.split(f"**{record.__name__}**")[1:]]
    fields = [field.name for field in dataclasses.fields(record)]
    assert any(in_order(fields, each) for each in told), fields


def test_the_bounds_of_answers_and_requests_are_those_of_the_document() -> None:
    """Of the methods whose bounds are more than what a few numbers take; and of a receipt."""
    bounds = {
        "header": (MAX_HEADER_BYTES, log_client.MAX_ANSWER_BYTES),
        "commit-after": (128, log_client.MAX_FEED_BYTES),
        "tree-head": (log_client.MAX_RECEIPT_BYTES + 16, log_proofs.MAX_SHOWN_HEAD_BYTES),
        "commit-at": (64, log_client.MAX_RECEIPT_BYTES),
        "histories": (MAX_HISTORIES_BYTES, "-"),
        "consistency": (log_proofs.MAX_ASK_CONSISTENCY_BYTES, log_proofs.MAX_CONSISTENCY_BYTES),
        "listing": (128, log_client.MAX_LISTING_BYTES),
        "weights": (128, MAX_WEIGHED_BYTES),
        "contributions": (128, log_client.MAX_CONTRIBUTIONS_BYTES),
        "entries": (log_proofs.MAX_ASK_ENTRIES_BYTES, log_proofs.MAX_ENTRIES_BYTES),
        "credit": (128, log_client.MAX_CREDIT_BYTES),
        "audit.wanted": (auditing.MAX_ASK_BYTES, auditing.MAX_WANTED_BYTES),
        "audit.bring": (auditing.MAX_PAGE_BYTES, 0),
        "audit.vector": (auditing.MAX_ASK_VECTOR_BYTES, auditing.PAGE_BYTES),
        "audit.assignments": (64, auditing.MAX_DUTIES_BYTES),
        "audit.finding": (auditing.MAX_SIGNED_FINDING_BYTES, 0),
        "audit.verdict": (auditing.MAX_SIGNED_VERDICT_BYTES, 0),
        "commit": (log_client.MAX_RECEIPT_BYTES, "-"),
        "evaluate": (MAX_QUESTION_BYTES, MAX_WORD_BYTES),
    }
    _, _, methods = DOCUMENT.partition("| method | served by |")
    shown = {
        cells[1].strip(" `"): cells[-3].strip() for cells in (line.split("|") for line in methods.partition("\n\n")[0].splitlines()[2:])
    }
    for name, each in bounds.items():
        assert shown[name] == ", ".join(f"{number:,}" if isinstance(number, int) and number > 9999 else str(number) for number in each), (
            name
        )
    assert f"\nReceipt ({log_client.MAX_RECEIPT_BYTES})\n" in DOCUMENT
    assert f"\nCreditWord ({log_client.MAX_CREDIT_BYTES})\n" in DOCUMENT


def test_every_section_that_is_referred_to_is_there_and_has_the_part_that_is_named() -> None:
    """Such as: section 5, Witnesses. Sections of RFCs have dots."""
    both = f"{DOCUMENT}\n{TRAINING}"
    sections = {
        number: body for number, _, body in (each.partition(". ") for each in re.split(r"^## (?=[0-9])", both, flags=re.MULTILINE)[1:])
    }
    assert sorted(map(int, sections)) == list(range(1, len(sections) + 1))
    for section, part in re.findall(r"[Ss]ections?\s+([0-9]+)(?!\.?[0-9])(?:,\s+([A-Z]\w+(?: \w+)?))?", both):
        assert section in sections
        assert not part or re.search(rf"^### {part}|\*\*{part}", sections[section], re.MULTILINE), (section, part)


def test_the_versions_are_those_of_the_document() -> None:
    assert f"as it is, version {PROTOCOL} of the protocol" in DOCUMENT
    assert f"The **protocol's version** is one number, {PROTOCOL}." in DOCUMENT
    assert f"the protocol's (section 25), {PROTOCOL}, for all kinds" in DOCUMENT
    assert re.search(rf"^  protocol  .* this version: {PROTOCOL}$", DOCUMENT, re.MULTILINE)
    assert f"version {PROTOCOL} has program `{PROGRAM}`" in DOCUMENT


def test_the_mean_of_the_document_is_that_of_its_rows_added_in_another_order() -> None:
    backwards = Sum(4, min(MIN_EXPONENTS))
    for body, min_exponent, weight in reversed(list(zip(PARSED, MIN_EXPONENTS, counted_weights(), strict=True))):
        backwards.add(body, min_exponent - min(MIN_EXPONENTS), weight)
    assert backwards.mean(sum(weights(WEIGHING))).tobytes() == OUTCOME.mean.tobytes()
