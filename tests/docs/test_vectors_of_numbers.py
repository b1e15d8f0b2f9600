"""docs/vectors: docs/verifier.py computes the same bodies, means, updates, proofs and whole runs as Manta.

Rates, coverage and sorted channels are compared with the program itself, in ``test_verifier_values`` and ``test_supernets``.
"""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from manta_swarm.protocol.cosignatures import cosignatures_of
from manta_swarm.protocol.merkle import leaf_hash, verify_consistency, verify_range
from tests.docs.vectors import FOLDER
from tests.docs.verifiers import values, verifier

BODIES, MEANS, UPDATES, PROOFS, RUNS = (
    json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in ("bodies", "means", "updates", "proofs", "runs")
)


def vector(text: str) -> np.ndarray:
    """Return the vector of these bytes."""
    return np.frombuffer(bytes.fromhex(text), "<f4")


def of(body: Any, count: int, min_exponent: int) -> np.ndarray:
    """Return the values of a body."""
    found = np.zeros(count)
    found[body.places] = np.ldexp(body.integers.astype(np.float64), body.exponents + min_exponent)
    return found.astype(np.float32)


@pytest.mark.parametrize("case", BODIES["bodies"], ids=lambda case: f"{case['codec']} {case['name']}")
def test_a_body_has_its_values_and_its_root(case: dict[str, Any]) -> None:
    data, count = bytes.fromhex(case["body"]), len(vector(case["vector"]))
    body = values.open_body(values.Codec(case["codec"]), data, count)
    assert np.array_equal(of(body, count, case["min_exponent"]), vector(case["values"]))
    assert (str(body.norm), body.highest) == (case["norm_square"], case["max_exponent"])
    assert verifier.tree_root(body.groups).hex() == case["root"]


@pytest.mark.parametrize("case", BODIES["refused"], ids=lambda case: f"{case['codec']} {case['body'][:12]}")
def test_bytes_that_no_values_are_coded_to_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"another length|an exponent|positions"):
        values.open_body(values.Codec(case["codec"]), bytes.fromhex(case["body"]), case["count"])


@pytest.mark.parametrize("case", MEANS, ids=lambda case: case["name"])
def test_a_table_comes_to_its_mean(case: dict[str, Any]) -> None:
    codec, then = values.Codec(case["codec"]), case["then"]
    bodies = [values.open_body(codec, bytes.fromhex(row["body"]), case["count"]) for row in case["rows"]]
    rows = [
        SimpleNamespace(age=row["age"], role=row["role"], samples=(row["samples"] - row["unproven"], row["unproven"]), proven=(True, False))
        for row in case["rows"]
    ]
    before = SimpleNamespace(
        min_exponent=case["min_exponent"],
        thresholds=[SimpleNamespace(role=role, norm=norm, samples=samples) for role, norm, samples in case["thresholds"]],
    )
    spec = SimpleNamespace(m=SimpleNamespace(algorithm="data-parallel"))
    found = values.left_by(rows, bodies, [row["min_exponent"] for row in case["rows"]], before, spec, codec, case["count"])
    assert list(map(list, found.weights)) == [then["weights"], then["clipped"]]
    assert found.mean.tobytes().hex() == then["mean"]
    assert verifier.tree_root(values.vector_groups(found.mean)).hex() == then["root"]
    assert found.min_exponent == then["min_exponent"]
    assert [[role, *each] for role, each in found.thresholds] == then["thresholds"]


def test_the_tables_of_means_have_what_they_are_for() -> None:
    said = {case["name"]: case["then"] for case in MEANS}
    assert said["one is clipped"]["weights"] != said["one is clipped"]["clipped"]
    assert said["some are not proven"]["weights"] != said["of three ages, two roles"]["weights"]


@pytest.mark.parametrize("case", UPDATES["steps"], ids=lambda case: f"{case['optimizer']['name']} {case['local_steps']} {case['round']}")
def test_a_step_leads_to_the_same_bits(case: dict[str, Any]) -> None:
    manifest = SimpleNamespace(optimizer=SimpleNamespace(**case["optimizer"]), exchange=SimpleNamespace(local_steps=case["local_steps"]))
    decays = True if case["decays"] == "all" else np.array(case["decays"])
    found = values.stepped(list(map(vector, case["before"])), vector(case["mean"]), manifest, case["rate"], decays, case["round"])
    assert [each.astype("<f4").tobytes().hex() for each in found] == case["after"]
    assert all(bool(np.isfinite(each).all()) for each in found) == case["is_finite"]


def first_weights(formula: str, count: int) -> np.ndarray:
    """Return the weights of a formula of their places i."""
    assert formula == "(i * 40503 mod 65536 - 32768) / 2^20"
    return ((np.arange(count) * 40503 % 65536 - 32768) / 2**20).astype("<f4")


def test_proofs_lead_to_the_roots() -> None:
    roots = list(map(bytes.fromhex, PROOFS["roots"]))
    leaves = [verifier.leaf_hash(bytes([place])) for place in range(len(roots) - 1)]
    assert leaves[0].hex() == PROOFS["leaf"]
    tree = verifier.Tree(leaves)
    assert [tree.root(0, size) for size in range(len(roots))] == roots
    for case in PROOFS["inclusion"]:
        index, size, proof = case["index"], case["size"], list(map(bytes.fromhex, case["proof"]))
        assert verifier.root_by_inclusion(leaves[index], index, size, proof) == roots[size]
        assert tree.inclusion(index, 0, size) == proof
    for case in PROOFS["consistency"]:
        old, new, proof = case["old"], case["new"], list(map(bytes.fromhex, case["proof"]))
        verify_consistency(old, new, proof, roots[old], roots[new])
        if old:
            assert verifier.roots_by_consistency(old, new, proof, roots[old]) == (roots[old], roots[new])
    for case in PROOFS["ranges"]:
        first, end, size = case["first"], case["end"], case["size"]
        hashes, proof = [leaf_hash(bytes([place])) for place in range(first, end)], list(map(bytes.fromhex, case["proof"]))
        verify_range(hashes, first, size, proof, roots[size])
        assert verifier.root_by_range(hashes, first, size, proof) == roots[size]


def test_heads_are_signed_and_cosigned() -> None:
    for head in PROOFS["heads"]:
        operators = (bytes.fromhex(head["key"]), *([bytes.fromhex(head["witness"])] if "witness" in head else []))
        manifest = SimpleNamespace(operators=operators, quorum=len(operators))
        found = verifier.open_head(head["note"], bytes.fromhex(head["run"]), manifest)
        assert (found[0], found[1].hex()) == (head["size"], head["root"])
        assert [(each.key.hex(), each.time_s) for each in cosignatures_of(head["note"])] == (
            [(head["witness"], head["time"])] if "witness" in head else []
        )


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_a_whole_run_follows_from_its_entries_bodies_and_first_state(run: dict[str, Any]) -> None:
    """Without a folder, as a second implementation would take it from the file."""
    identity, manifest = verifier.open_manifest(bytes.fromhex(run["manifest"]))
    ledger, entries, first = verifier.Ledger(identity, manifest), list(map(bytes.fromhex, run["entries"])), run["first_state"]
    weights = first_weights(first["weight_i"], first["weights"])
    state = values.State(0, [weights, *(np.zeros_like(weights) for _ in range(first["moments_of_zeros"]))], b"")
    assert verifier.digest_of_state(state).hex() == first["digest"] == manifest.initial_state.hex()
    tree, size = verifier.Tree(map(verifier.leaf_hash, entries)), 0
    for number, said in enumerate(run["rounds"], 1):
        while ledger.round < number:
            ledger.append(entries[ledger.size])
        round_, before = ledger.rounds[number], ledger.rounds[number - 1]
        bodies = [values.open_body(ledger.codec, bytes.fromhex(body), weights.size) for body in said["bodies"]]
        assert [verifier.tree_root(body.groups) for body in bodies] == [row.body for row in round_.listed]
        min_exponents = [ledger.rounds[row.round - 1].min_exponent for row in round_.listed]
        left = values.left_by(round_.listed, bodies, min_exponents, before, ledger.training_spec, ledger.codec, weights.size)
        assert list(map(list, left.weights)) == [said["weights"], said["clipped"]]
        assert verifier.tree_root(values.vector_groups(left.mean)).hex() == said["mean"] == round_.entry.mean.hex()
        state = state.after(left.mean, ledger.training_spec, before.state)
        assert verifier.digest_of_state(state).hex() == said["state"] == round_.state.hex()
        assert state.teacher.hex() == said["teacher"]
        for place, *found in said["values"]:
            assert [vector_[[place]].astype("<f4").tobytes().hex() for vector_ in (left.mean, *state.vectors)] == found
        assert {key.hex(): amount for key, amount in ledger.credits.items() if amount} == said["credits"]
        assert verifier.open_head(said["tree_head"], identity, manifest) == (ledger.size, tree.root(0, ledger.size))
        assert [each.hex() for each in tree.inclusion(ledger.size - 1, 0, ledger.size)] == said["inclusion_of_last"]
        proof = [each.hex() for each in tree.consistency(size, 0, ledger.size)] if size else []
        assert proof == said["consistency_with_round_before"]
        size = ledger.size
    for entry in entries[ledger.size :]:
        ledger.append(entry)
    assert {key.hex(): amount for key, amount in ledger.credits.items()} == run["credits"]
    assert (ledger.round, ledger.rounds[-1].commit.hex()) == (run["round"], run["commit"])


def test_the_whole_runs_have_what_they_are_for() -> None:
    by_name = {run["name"]: run for run in RUNS}
    assert any(each["weights"] != each["clipped"] for each in by_name["unaudited"]["rounds"])
    assert by_name["audited"]["settled"]
    assert {each["teacher"] for each in by_name["audited"]["rounds"]} > {""}
    assert (FOLDER / "runs.json").stat().st_size < 300_000
