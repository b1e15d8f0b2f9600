"""docs/verifier.py: the manifest, the tree, its heads and its proofs; what makes a log hold entry by entry is in ``test_vectors``."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.protocol.encoding import decode, encode, pack
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.records import Receipt, entry_of
from manta_swarm.protocol.signing import sha256
from tests.docs.logs import OPERATOR, STRANGER, log_of
from tests.docs.verifiers import VERIFIER, export_of, verifier


def refused(folder: Path, rule: str, where: str, run: str | None = None, receipts: Sequence[Path] = ()) -> None:
    with pytest.raises(verifier.Refused) as caught:
        verifier.verify_all(folder, verifier.Asked(run, tuple(receipts)))
    assert (caught.value.rule, caught.value.where) == (rule, where), str(caught.value)


def test_a_log_does_not_end_in_the_middle_of_a_round(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, [*log.entries, entry_of(log.header())], OPERATOR)
    refused(tmp_path, "E2", f"entry {len(log.entries) + 1}")


def test_an_entry_that_breaks_a_rule_is_named_with_its_place(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, [*log.entries, *log.round([log.header()], open_ms=1)], OPERATOR)
    refused(tmp_path, "E29", f"entry {len(log.entries) + 1}")


# The manifest, the tree and its heads.


def manifests() -> dict[str, tuple[str, SignedManifest]]:
    signed = log_of().signed
    quorum = encode((*decode(signed.payload, max_bytes=2**20)[:-1], 2))  # type: ignore[index]
    return {
        "another key signed it": ("S2", SignedManifest.sign(signed.open(), STRANGER)),
        "it is of another version": ("M1", replace(signed, protocol=signed.protocol + 1)),
        "it is changed": ("S2", replace(signed, payload=signed.payload.replace(b"digits", b"difits"))),
        "its quorum is more than its operators": ("M2", SignedManifest(quorum, OPERATOR.sign("manifest", quorum))),
    }


@pytest.mark.parametrize("name", manifests())
def test_a_manifest_that_does_not_hold_is_refused(tmp_path: Path, name: str) -> None:
    rule, signed = manifests()[name]
    export_of(tmp_path, signed, log_of(2).entries, OPERATOR)
    refused(tmp_path, rule, "manifest.cbor")


def test_another_run_than_the_one_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    verifier.verify_all(tmp_path, verifier.Asked(log.ledger.run.hex()))
    refused(tmp_path, "M3", "manifest.cbor", run="00" * 32)


def test_a_head_that_a_stranger_signed_is_refused(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, log.entries, STRANGER)
    refused(tmp_path, "T2", "checkpoint")


def test_a_head_of_another_run_is_refused(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    note = (tmp_path / "checkpoint").read_text().partition("\n")[2]
    (tmp_path / "checkpoint").write_text(f"manta/{'00' * 32}\n{note}")
    refused(tmp_path, "S2", "checkpoint")


def test_a_head_that_is_no_note_is_refused(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    (tmp_path / "checkpoint").write_text((tmp_path / "checkpoint").read_text().replace("\n\n", "\n"))
    refused(tmp_path, "T1", "checkpoint")


def test_a_head_of_too_few_operators_is_refused(tmp_path: Path) -> None:
    keys = (OPERATOR.public_key, STRANGER.public_key)
    log = log_of(1, operators=keys, quorum=2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "T2", "checkpoint")


def test_a_head_of_other_entries_is_refused(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    name = origin(log.signed.run)
    head = TreeHead(name, len(log.entries), sha256(b"another"))
    (tmp_path / "checkpoint").write_text(sign_tree_head(head, name, OPERATOR))
    refused(tmp_path, "T3", "checkpoint")


def test_a_tile_that_is_changed_is_refused(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    (tile,) = tmp_path.glob("tile/0/*.p/*")
    tile.write_bytes(bytes([tile.read_bytes()[0] ^ 1]) + tile.read_bytes()[1:])
    refused(tmp_path, "T4", str(tile.relative_to(tmp_path)))


def test_receipts_are_checked(tmp_path: Path) -> None:
    log = log_of(2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    tree = Tree()
    for entry in log.entries:
        tree.append(leaf_hash(entry))
    receipt = Receipt(log.entries[3], 3, tuple(tree.inclusion_proof(3)), (tmp_path / "checkpoint").read_text())
    (tmp_path / "holds").write_bytes(pack(receipt))
    (tmp_path / "lies").write_bytes(pack(replace(receipt, index=2)))
    verifier.verify_all(tmp_path, verifier.Asked(receipts=(tmp_path / "holds",)))
    refused(tmp_path, "T5", str(tmp_path / "lies"), receipts=[tmp_path / "holds", tmp_path / "lies"])


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
