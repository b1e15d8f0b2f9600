"""Test vectors of what is computed with numbers and hashes: bodies, means, updates and proofs, for ``tests.docs.vectors``.

Vectors of values are binary32, little-endian, as they are signed and sent.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.coverage import coverage
from manta_swarm.automl.training.optimizers import outer_step, own_step
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import sort_channels
from manta_swarm.codec.coding import body_groups, encode, parse
from manta_swarm.codec.mean import table_mean
from manta_swarm.codec.vectors import vector_groups
from manta_swarm.protocol.cosignatures import cosign, with_cosignatures
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.manifest import Optimizer
from manta_swarm.protocol.merkle import leaf_hash, root
from manta_swarm.protocol.notes import split_note
from manta_swarm.protocol.records import Threshold
from manta_swarm.protocol.signing import sha256
from manta_swarm.protocol.table import Weighing
from tests.docs.logs import OPERATOR, STRANGER, head_of, tree_of
from tests.docs.whole import ADAMW, FORMULA, first_weights

Vector = NDArray[np.float32]
CODECS = ("int16", "int8", "topk-512-4", "topk-64-2", "topk-1-8")
SGD = replace(ADAMW, name="sgd")
NUMBERS: dict[str, Sequence[float]] = {
    "one": [1.5],
    "zeros": [0.0] * 7,
    "a few": [1, -2, 0.3, 0, 0.0001, -0.5],
    "alike": [0.25] * 20,
    "far apart": [2**-9, -(2**-20), 2**-3, 2**-12, -0.9, 1e-30],
    "too large for the range": [2.0**20, 1.0, -(2.0**18)],
    "of a spread": [(7 * place % 31 - 15) / 64 for place in range(40)],
}


def bytes_of(values: Sequence[float] | Vector) -> bytes:
    """Return a vector as it is signed and sent."""
    return np.asarray(values, "<f4").tobytes()


def bodies() -> dict[str, Any]:
    """Return vectors with the bodies that they are coded to, and bytes that no vector is coded to."""
    cases = [
        {"name": name, **coded(codec, np.array(values, np.float32), -20)} for codec, (name, values) in product(CODECS, NUMBERS.items())
    ]
    ends = np.zeros(4101, np.float32)  # a chunk and a part of one
    ends[[0, 1, 4095, 4096, 4100]] = 1, -0.01, 0.5, 0.25, 0.001
    cases.append({"name": "a chunk and five values", **coded("topk-64-2", ends, -24)})
    return {"bodies": cases, "refused": list(refused_bodies())}


def coded(codec: str, values: Vector, min_exponent: int) -> dict[str, Any]:
    data = encode(codec, values, min_exponent)
    body = parse(codec, data, values.size)
    return {
        "codec": codec,
        "min_exponent": min_exponent,
        "vector": bytes_of(values),
        "body": data,
        "root": root(leaf_hash(bytes(group)) for group in body_groups(codec, data, values.size)),
        "values": bytes_of(body.values(min_exponent)),
        "max_exponent": body.max_exponent,
        "norm_square": str(body.norm_square),
    }


def refused_bodies() -> list[dict[str, Any]]:
    """Return bodies with a byte changed so that no values are coded to them."""
    found, values = list[dict[str, Any]](), np.array(NUMBERS["of a spread"], np.float32)
    for codec in CODECS:
        data, rng = encode(codec, values, -20), random.Random(codec)
        tried = [data + b"\0", data[:-1]]
        tried += [data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :] for place in range(len(data))]
        refused = [each for each in tried if not is_body(codec, each, values.size)]
        found += [{"codec": codec, "count": values.size, "body": each} for each in refused[:8]]
    return found


def is_body(codec: str, data: bytes, count: int) -> bool:
    try:
        parse(codec, data, count)
    except EncodingError:
        return False
    return True


def means() -> list[dict[str, Any]]:
    """Return tables with what they come to."""
    one = [
        {"age": 0, "role": 0, "samples": 64, "unproven": 0, "vector": NUMBERS["a few"]},
        {"age": 1, "role": 0, "samples": 64, "unproven": 0, "vector": [0.5, -1, 0.25, 2**-12, 0, 1]},
        {"age": 4, "role": 1, "samples": 16, "unproven": 0, "vector": [40, -30, 20, 10, -5, 2.5]},
    ]
    unproven = [row | {"unproven": each} for row, each in zip(one, (32, 64, 0), strict=True)]
    usual = [Threshold(0, 393_216, 64), Threshold(1, 2_000_000, 16), Threshold(3, 7, 16)]
    cases: list[tuple[str, str, list[dict[str, Any]], list[Threshold]]] = [
        ("alone", "int16", one[:1], []),
        ("of three ages, two roles", "int16", one, []),
        ("nobody is proven", "int8", [row | {"unproven": row["samples"]} for row in one], []),
        ("some are not proven", "int8", unproven, []),
        ("one is clipped", "int16", one, usual),
        ("one has fewer samples than usual", "int16", one, [Threshold(0, 10_000, 1000), Threshold(1, 200_000, 1000)]),
        ("a usual norm of 0 clips nobody", "int16", one, [Threshold(0, 0, 64), Threshold(1, 2_000_000, 16)]),
        ("sparse", "topk-2048-4", one, usual),
        ("zeros alone", "int16", [row | {"vector": [0.0] * 6} for row in one], usual),
        ("large numbers", "int16", [row | {"vector": [2.0**20 * each for each in row["vector"]]} for row in one], []),
    ]
    return [mean(*case) for case in cases]


def mean(name: str, codec: str, rows: list[dict[str, Any]], before: list[Threshold]) -> dict[str, Any]:
    """Return a table on min exponent -19, whose rows are on bases of -19 to -21."""
    min_exponents = [-19 - min(row["age"], 2) for row in rows]
    data = [encode(codec, np.array(row["vector"], np.float32), each) for row, each in zip(rows, min_exponents, strict=True)]
    count = len(rows[0]["vector"])
    table = [Weighing(row["age"], row["role"], row["samples"], row["unproven"]) for row in rows]
    found = table_mean(table, [parse(codec, each, count) for each in data], min_exponents, before, -19, count)
    return {
        "name": name,
        "codec": codec,
        "count": count,
        "min_exponent": -19,
        "thresholds": [[each.role, each.norm, each.samples] for each in before],
        "rows": [
            {**{name: row[name] for name in ("age", "role", "samples", "unproven")}, "min_exponent": each, "body": body}
            for row, each, body in zip(rows, min_exponents, data, strict=True)
        ],
        "then": {
            "weights": found.weights,
            "clipped": found.clipped,
            "mean": bytes_of(found.mean),
            "root": root(leaf_hash(bytes(group)) for group in vector_groups(found.mean)),
            "min_exponent": found.min_exponent,
            "thresholds": [[each.role, each.norm, each.samples] for each in found.thresholds],
        },
    }


def updates() -> dict[str, Any]:
    """Return steps of states, rates, which weights an architecture covers, and channels in order."""
    return {"steps": steps(), "rates": rates(), "coverage": covered(), "sorted": sorted_weights()}


def steps() -> list[dict[str, Any]]:
    """Return steps of each optimizer; the last of a kind leads to what is not finite, and is not taken."""
    found = list[dict[str, Any]]()
    state = [np.array(values, np.float32) for values in ([1, -2, 0.3, 0, 1e-40], [0.1, 0.2, -0.3, 0, 1e-38], [0.5, 1e-12, 2, 0, 1e-44])]
    gradients = [[0.3, -0.1, 1e-3, 0, 7], [1e-20, 3, -4, 1e-45, 0.1], [3e38, 3e38, 1, 1, 1]]
    for optimizer, local_steps, is_of_all in ((ADAMW, 1, True), (ADAMW, 1, False), (SGD, 1, True), (SGD, 1, False), (SGD, 2, True)):
        before = state[: 3 if (optimizer.name, local_steps) == ("adamw", 1) else 2]
        for number, gradient in enumerate(gradients, 1):
            decays = None if is_of_all else [True, False, True, False, True]
            after = step(before, np.array(gradient, np.float32), optimizer, local_steps, number, decays)
            found.append(
                {
                    "optimizer": asdict(optimizer),
                    "local_steps": local_steps,
                    "round": number,
                    "rate": 0.0017,
                    "decays": decays or "all",
                    "before": list(map(bytes_of, before)),
                    "mean": bytes_of(gradient),
                    "after": list(map(bytes_of, after)),
                    "is_finite": all(bool(np.isfinite(vector).all()) for vector in after),
                }
            )
            before = after
    return found


def step(
    before: list[Vector], gradient: Vector, optimizer: Optimizer, local_steps: int, number: int, decays: list[bool] | None
) -> list[Vector]:
    """Return weights and moments after a step, whether these are finite or not."""
    weights, *moments = map(torch.from_numpy, before)
    if local_steps > 1:
        after, momentum = outer_step(weights, moments[0], torch.from_numpy(gradient), optimizer)
        return [after.numpy(), momentum.numpy()]
    some = None if decays is None else torch.tensor(decays)
    after, found = own_step(weights, tuple(moments), torch.from_numpy(gradient), optimizer, rate=0.0017, number=number, decays_N=some)
    return [after.numpy(), *(moment.numpy() for moment in found)]


def rates() -> list[dict[str, Any]]:
    """Return the rates of rounds, as the shortest decimals of their binary64."""
    plans = [Plan("classifier-tiny", schedule, "data-parallel", ADAMW, 20, 0) for schedule in ("sandwich", "shrinking")]
    said = {"num_rounds": 20, "warmup_percent": 30, "learning_rate": "0.002"}
    return [
        {"schedule": plan.schedule, **said, "round": round_, "rate": plan.learning_rate(round_)}
        for plan in plans
        for round_ in range(1, 21)
    ]


def covered() -> list[dict[str, Any]]:
    """Return how many weights architectures use, and SHA-256 of a byte, 0 or 1, for each weight."""
    found = list[dict[str, Any]]()
    for name in ("classifier-tiny", "classifier-base", "stereo-tiny"):
        space = space_named(name)
        for architecture in (space.smallest(), space.sample(random.Random(name)), space.largest()):
            used = coverage(space, architecture)
            found.append(
                {
                    "supernet": name,
                    "architecture": architecture.text,
                    "weights": used.size,
                    "used": int(used.sum()),
                    "digest": sha256(used.astype(np.uint8).tobytes()),
                }
            )
    return found


def sorted_weights() -> list[dict[str, Any]]:
    """Return what sorting makes of the weights of ``tests.docs.whole`` with a moment of minus twice these."""
    weights = torch.from_numpy(first_weights())
    after, (moment,) = sort_channels(weights, (-2 * weights,), "classifier-tiny")
    before, sorted_ = weights.numpy(), after.numpy()
    moved = np.flatnonzero(before != sorted_)
    return [
        {
            "supernet": "classifier-tiny",
            "formula": FORMULA,
            "before": sha256(bytes_of(before)),
            "after": sha256(bytes_of(sorted_)),
            "moment": sha256(bytes_of(moment.numpy())),
            "moved": int(moved.size),
            "first_moved": int(moved[0]),
        }
    ]


def proofs() -> dict[str, Any]:
    """Return a tree's roots, its proofs, and heads of it; leaf i is the byte i."""
    leaves, run = [bytes([place]) for place in range(13)], sha256(b"run")
    tree, note = tree_of(leaves), head_of(leaves, run)
    cosignature = cosign(split_note(note)[0], 1_700_000_000, STRANGER)
    head = {"run": run, "key": OPERATOR.public_key, "size": tree.size, "root": tree.root()}
    return {
        "leaf": leaf_hash(b"\0"),
        "roots": [tree.root(size) for size in range(14)],
        "inclusion": [
            {"index": index, "size": size, "proof": tree.inclusion_proof(index, size)}
            for size in (1, 2, 3, 7, 8, 13)
            for index in range(0, size, max(1, size // 4))
        ],
        "consistency": [
            {"old": old, "new": new, "proof": tree.consistency_proof(old, new)}
            for new in (2, 3, 7, 8, 13)
            for old in range(0, new + 1, max(1, new // 4))
        ],
        "ranges": [
            {"first": first, "end": end, "size": size, "proof": tree.range_proof(first, end, size)}
            for first, end, size in ((0, 1, 1), (0, 3, 3), (1, 3, 7), (4, 8, 8), (5, 6, 13), (2, 11, 13))
        ],
        "heads": [
            {**head, "note": note},
            {**head, "witness": STRANGER.public_key, "time": 1_700_000_000, "note": with_cosignatures(note, [cosignature])},
        ],
    }
