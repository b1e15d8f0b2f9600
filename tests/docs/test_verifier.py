"""docs/verifier.py on exports: heads, the tree and its proofs. Folders are in ``test_verifier_forgeries``, entries in ``test_vectors``."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manta_swarm.protocol.merkle import Tree, leaf_hash
from tests.docs.logs import OPERATOR, STRANGER, head_of, log_of
from tests.docs.verifiers import VERIFIER, export_of, verifier

LOG = log_of(2)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    export_of(tmp_path, LOG.signed, LOG.entries, OPERATOR)
    return tmp_path


def refused(folder: Path, rule: str, where: str, run: str | None = None) -> None:
    with pytest.raises(verifier.Refused) as caught:
        verifier.verify_all(folder, verifier.Asked(run))
    assert (caught.value.rule, caught.value.where) == (rule, where), str(caught.value)


def test_another_run_than_the_one_that_was_asked_for_is_refused(export: Path) -> None:
    verifier.verify_all(export, verifier.Asked(LOG.ledger.run.hex()))
    refused(export, "M3", "manifest.cbor", run="00" * 32)


HEADS: dict[str, tuple[str, Callable[[str], str]]] = {
    "a stranger signed it": ("T2", lambda _: head_of(LOG.entries, LOG.ledger.run, STRANGER)),
    "it is of another run": ("S2", lambda note: note.replace(LOG.ledger.run.hex(), "00" * 32, 1)),
    "it is no note": ("T1", lambda note: note.replace("\n\n", "\n")),
    "it is of other entries": ("T3", lambda _: head_of([*LOG.entries[1:], b"another"], LOG.ledger.run)),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_an_export_that_does_not_hold_is_refused(export: Path, name: str) -> None:
    rule, change = HEADS[name]
    (export / "checkpoint").write_text(change((export / "checkpoint").read_text()))
    refused(export, rule, "checkpoint")


def test_a_head_of_too_few_operators_is_refused(tmp_path: Path) -> None:
    log = log_of(1, operators=(OPERATOR.public_key, STRANGER.public_key), quorum=2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "T2", "checkpoint")


def test_a_tile_that_is_changed_is_refused(export: Path) -> None:
    (tile,) = export.glob("tile/0/*.p/*")
    tile.write_bytes(bytes([tile.read_bytes()[0] ^ 1]) + tile.read_bytes()[1:])
    refused(export, "T4", str(tile.relative_to(export)))


@pytest.mark.parametrize("size", range(1, 18))
def test_proofs_lead_to_no_other_root(size: int) -> None:
    leaves = [leaf_hash(bytes([place])) for place in range(size)]
    theirs, tree = Tree(), verifier.Tree(leaves)
    roots = []
    for leaf in leaves:
        theirs.append(leaf)
        roots.append(theirs.root())
    for index in range(size):
        proof = tree.inclusion(index, 0, size)
        assert proof == theirs.inclusion_proof(index)
        assert verifier.root_by_inclusion(leaves[index], index, size, proof) == roots[-1]
        for old in range(index):
            assert verifier.root_by_inclusion(leaves[old], index, size, proof) != roots[-1]
        proof = tree.consistency(index + 1, 0, size)
        assert proof == theirs.consistency_proof(index + 1)
        assert verifier.roots_by_consistency(index + 1, size, proof, roots[index]) == (roots[index], roots[-1])
        with pytest.raises(ValueError, match="another length"):
            verifier.roots_by_consistency(index + 1, size, [*proof, bytes(32)], roots[index])


def test_the_verifier_imports_nothing_of_ours() -> None:
    command = "import sys; sys.path.insert(0, sys.argv[1]); import verifier; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-P", "-c", command, str(VERIFIER.parent)], capture_output=True, text=True, check=True, cwd="/")
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    files = {path.stem for path in VERIFIER.parent.glob("verifier*.py")}
    assert {"cbor2", "cryptography", "numpy"} | files <= loaded
    assert not [name for name in loaded if name in ("manta_swarm", "tests", "torch", "hivemind", "pydantic", "safetensors")]
    assert all(len(path.read_text().splitlines()) <= 600 for path in VERIFIER.parent.glob("verifier*.py"))
