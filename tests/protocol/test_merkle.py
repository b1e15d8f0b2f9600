"""The tree against RFC 6962's vectors and recursive definitions, and the verifiers against everything that is not a proof."""

import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.errors import ProofError, StorageError
from manta_swarm.protocol.merkle import (
    Frontier,
    Tree,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root,
    verify_consistency,
    verify_inclusion,
    verify_range,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
RFC_LEAVES = [
    bytes.fromhex(leaf) for leaf in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
# The reference vectors of the certificate-transparency project: the roots of the first 1, 2, ... 8 leaves.
RFC_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
RFC_INCLUSION = {  # (leaf counted from 0, size) -> path
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
RFC_CONSISTENCY = {  # (old size, new size) -> path
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


# The oracle: RFC 9162 section 2.1, word for word, on lists of leaf hashes.


def split(size: int) -> int:
    """The largest power of two smaller than ``size``."""
    return max(1 << bit for bit in range(size.bit_length()) if 1 << bit < size)


def mth(leaves: list[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return hashlib.sha256(b"\x01" + mth(leaves[:k]) + mth(leaves[k:])).digest()


def path(m: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    return [*path(m, leaves[:k]), mth(leaves[k:])] if m < k else [*path(m - k, leaves[k:]), mth(leaves[:k])]


def subproof(m: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    if m == len(leaves):
        return [] if whole else [mth(leaves)]
    k = split(len(leaves))
    if m <= k:
        return [*subproof(m, leaves[:k], whole), mth(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), mth(leaves[:k])]


# The oracle of verification: the same recursions, read backwards. None where no such path exists.


def root_of_path(m: int, size: int, leaf: bytes, proof: list[bytes]) -> bytes | None:
    if size == 1:
        return None if proof else leaf
    if not proof:
        return None
    k = split(size)
    if m < k:
        inner = root_of_path(m, k, leaf, proof[:-1])
        return None if inner is None else node_hash(inner, proof[-1])
    inner = root_of_path(m - k, size - k, leaf, proof[:-1])
    return None if inner is None else node_hash(proof[-1], inner)


def roots_of_subproof(m: int, size: int, proof: list[bytes], old_root: bytes | None) -> tuple[bytes, bytes] | None:
    """The two roots that a subproof leads to; ``old_root`` while the subtree may be the whole old tree, which is left out."""
    if m == size:
        if old_root is not None:
            return None if proof else (old_root, old_root)
        return (proof[0], proof[0]) if len(proof) == 1 else None
    if not proof:
        return None
    k = split(size)
    if m <= k:
        inner = roots_of_subproof(m, k, proof[:-1], old_root)
        return None if inner is None else (inner[0], node_hash(inner[1], proof[-1]))
    inner = roots_of_subproof(m - k, size - k, proof[:-1], None)
    return None if inner is None else (node_hash(proof[-1], inner[0]), node_hash(proof[-1], inner[1]))


def leaves_of(count: int) -> list[bytes]:
    return [leaf_hash(number.to_bytes(4, "big")) for number in range(count)]


def tree_of(leaves: list[bytes]) -> Tree:
    tree = Tree()
    for leaf in leaves:
        tree.append(leaf)
    return tree


def holds(verify: Callable[..., None], *arguments: Any) -> bool:
    try:
        verify(*arguments)
    except ProofError:
        return False
    return True


def test_roots_are_those_of_the_reference_vectors() -> None:
    leaves = [leaf_hash(leaf) for leaf in RFC_LEAVES]
    assert root([]).hex() == EMPTY
    assert [root(leaves[:size]).hex() for size in range(1, 9)] == RFC_ROOTS


@pytest.mark.parametrize("place", RFC_INCLUSION)
def test_inclusion_proofs_are_those_of_the_reference_vectors(place: tuple[int, int]) -> None:
    index, size = place
    leaves = [leaf_hash(leaf) for leaf in RFC_LEAVES[:size]]
    proof = inclusion_proof(leaves, index)
    assert [hash_.hex() for hash_ in proof] == RFC_INCLUSION[place]
    verify_inclusion(leaves[index], index, size, proof, bytes.fromhex(RFC_ROOTS[size - 1]))


@pytest.mark.parametrize("sizes", RFC_CONSISTENCY)
def test_consistency_proofs_are_those_of_the_reference_vectors(sizes: tuple[int, int]) -> None:
    old, new = sizes
    proof = consistency_proof([leaf_hash(leaf) for leaf in RFC_LEAVES[:new]], old)
    assert [hash_.hex() for hash_ in proof] == RFC_CONSISTENCY[sizes]
    verify_consistency(old, new, proof, bytes.fromhex(RFC_ROOTS[old - 1]), bytes.fromhex(RFC_ROOTS[new - 1]))


def test_every_small_tree_and_proof_is_that_of_the_recursive_definition() -> None:
    leaves = leaves_of(33)
    tree = tree_of(leaves)
    for size in range(34):
        assert tree.root(size) == mth(leaves[:size])
        for index in range(size):
            assert tree.inclusion_proof(index, size) == path(index, leaves[:size])
            verify_inclusion(leaves[index], index, size, tree.inclusion_proof(index, size), tree.root(size))
        for old in range(size + 1):
            expected = subproof(old, leaves[:size], True) if old else []
            assert tree.consistency_proof(old, size) == expected
            verify_consistency(old, size, expected, tree.root(old), tree.root(size))


def test_an_inclusion_proof_holds_for_exactly_the_places_where_the_definition_says_so() -> None:
    leaves = leaves_of(17)
    for size in range(1, 18):
        for index in range(size):
            proof, whole = path(index, leaves[:size]), mth(leaves[:size])
            for other_size in range(1, 20):
                for other_index in range(other_size):
                    expected = root_of_path(other_index, other_size, leaves[index], proof) == whole
                    assert holds(verify_inclusion, leaves[index], other_index, other_size, proof, whole) == expected
                    assert not expected or other_index == index or other_size != size


def test_a_consistency_proof_holds_for_exactly_the_sizes_where_the_definition_says_so() -> None:
    leaves = leaves_of(13)
    for new in range(1, 14):
        for old in range(1, new + 1):
            proof = subproof(old, leaves[:new], True)
            roots = mth(leaves[:old]), mth(leaves[:new])
            for other_new in range(1, 16):
                for other_old in range(1, other_new + 1):
                    expected = roots_of_subproof(other_old, other_new, proof, roots[0]) == roots
                    assert holds(verify_consistency, other_old, other_new, proof, *roots) == expected


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(st.integers(1, 200))
    return draw(st.integers(0, size - 1)), size


def damage(draw: Draw, proof: list[bytes]) -> list[bytes]:
    """Flip one bit, or drop, add or exchange hashes."""
    kind = draw(st.sampled_from(["flip", "drop", "add", "exchange"] if proof else ["add"]))
    place = draw(st.integers(0, max(len(proof) - 1, 0)))
    if kind == "flip":
        return [*proof[:place], flip(draw, proof[place]), *proof[place + 1 :]]
    if kind == "drop":
        return proof[:place] + proof[place + 1 :]
    if kind == "add":
        return [*proof[:place], draw(st.binary(min_size=32, max_size=32)), *proof[place:]]
    return proof[::-1]


def flip(draw: Draw, hash_: bytes) -> bytes:
    bit: int = draw(st.integers(0, 255))
    return (int.from_bytes(hash_, "big") ^ 1 << bit).to_bytes(32, "big")


@given(places(), st.data())
def test_a_damaged_inclusion_proof_is_refused(place: tuple[int, int], data: st.DataObject) -> None:
    index, size = place
    leaves = leaves_of(size)
    proof, whole = inclusion_proof(leaves, index), mth(leaves)
    verify_inclusion(leaves[index], index, size, proof, whole)
    damaged = damage(data.draw, proof)
    if damaged != proof:
        with pytest.raises(ProofError):
            verify_inclusion(leaves[index], index, size, damaged, whole)
    with pytest.raises(ProofError):
        verify_inclusion(flip(data.draw, leaves[index]), index, size, proof, whole)
    with pytest.raises(ProofError):
        verify_inclusion(leaves[index], index, size, proof, flip(data.draw, whole))


@given(places(), st.data())
def test_a_damaged_consistency_proof_is_refused(place: tuple[int, int], data: st.DataObject) -> None:
    old, new = place[0] + 1, place[1]
    leaves = leaves_of(new)
    proof, old_root, new_root = consistency_proof(leaves, old), mth(leaves[:old]), mth(leaves)
    verify_consistency(old, new, proof, old_root, new_root)
    damaged = damage(data.draw, proof)
    if damaged != proof:
        with pytest.raises(ProofError):
            verify_consistency(old, new, damaged, old_root, new_root)
    with pytest.raises(ProofError):
        verify_consistency(old, new, proof, flip(data.draw, old_root), new_root)
    with pytest.raises(ProofError):
        verify_consistency(old, new, proof, old_root, flip(data.draw, new_root))


LEAF = leaf_hash(b"")
MALFORMED_INCLUSION = [
    (LEAF[:31], 0, 1, [], LEAF),
    (LEAF + b"0", 0, 1, [], LEAF),
    (LEAF, 0, 1, [], LEAF[:31]),
    (LEAF, 0, 2, [LEAF[:31]], node_hash(LEAF, LEAF[:31])),
    (LEAF, 0, 2, [LEAF + LEAF], node_hash(LEAF, LEAF + LEAF)),
    (LEAF, 0, 2, [LEAF.hex()], LEAF),
    (LEAF, 0, 2, [bytearray(LEAF)], node_hash(LEAF, LEAF)),
    (LEAF, 0, 2, [None], LEAF),
    (LEAF, 0, 2, None, LEAF),
    (LEAF, 0, 2, LEAF, LEAF),
    (LEAF, 0, 1, "", LEAF),
    (None, 0, 1, [], LEAF),
    (LEAF.hex(), 0, 1, [], LEAF),
    (LEAF, 0, 1, [], None),
    (LEAF, 0, 0, [], LEAF),
    (LEAF, 0, -1, [], LEAF),
    (LEAF, -1, 1, [], LEAF),
    (LEAF, 1, 1, [], LEAF),
    (LEAF, False, 1, [], LEAF),
    (LEAF, 0, True, [], LEAF),
    (LEAF, 0.0, 1, [], LEAF),
    (LEAF, 0, 1.0, [], LEAF),
    (LEAF, "0", 1, [], LEAF),
    (LEAF, None, 1, [], LEAF),
    (LEAF, 0, 2**4000, [LEAF] * 4000, LEAF),
    (LEAF, 0, 1, [LEAF] * 100_000, LEAF),
    (LEAF, 0, 2, [], LEAF),
]


@pytest.mark.parametrize("arguments", MALFORMED_INCLUSION)
def test_malformed_inclusion_arguments_are_proof_errors(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ProofError):
        verify_inclusion(*arguments)


NOTHING = bytes.fromhex(EMPTY)
MALFORMED_CONSISTENCY = [
    (1, 1, [], LEAF[:31], LEAF[:31]),
    (1, 2, [LEAF[:31]], LEAF, node_hash(LEAF, LEAF[:31])),
    (1, 2, None, LEAF, LEAF),
    (1, 2, [None], LEAF, LEAF),
    (1, 2, {LEAF}, LEAF, node_hash(LEAF, LEAF)),
    (2, 1, [], LEAF, LEAF),
    (-1, 1, [], LEAF, LEAF),
    (-2, -1, [], LEAF, LEAF),
    (True, True, [], LEAF, LEAF),
    (1.0, 1, [], LEAF, LEAF),
    (None, 1, [], LEAF, LEAF),
    (1, 2**4000, [LEAF] * 4000, LEAF, LEAF),
    (1, 1, [LEAF], LEAF, LEAF),
    (1, 1, [], LEAF, NOTHING),
    (1, 2, [], LEAF, LEAF),
    (3, 4, [], LEAF, LEAF),
    (0, 0, [], LEAF, LEAF),
    (0, 1, [], LEAF, LEAF),
    (0, 1, [LEAF], NOTHING, LEAF),
    (0, 0, [LEAF], NOTHING, NOTHING),
]


@pytest.mark.parametrize("arguments", MALFORMED_CONSISTENCY)
def test_malformed_consistency_arguments_are_proof_errors(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ProofError):
        verify_consistency(*arguments)


def test_a_leaf_is_never_taken_for_an_inner_node() -> None:
    left, right = leaves_of(2)
    forged = leaf_hash(left + right)  # an entry whose bytes are two hashes
    assert forged != node_hash(left, right)
    with pytest.raises(ProofError):
        verify_inclusion(forged, 0, 1, [], mth([left, right]))


@pytest.mark.parametrize(
    "ask",
    [
        lambda tree: tree.inclusion_proof(5),
        lambda tree: tree.inclusion_proof(-1),
        lambda tree: tree.inclusion_proof(3, 3),
        lambda tree: tree.inclusion_proof(0, 6),
        lambda tree: tree.inclusion_proof(0, 0),
        lambda tree: tree.consistency_proof(6),
        lambda tree: tree.consistency_proof(-1),
        lambda tree: tree.consistency_proof(3, 2),
        lambda tree: tree.consistency_proof(3, 6),
        lambda tree: tree.root(6),
        lambda tree: tree.root(-1),
        lambda tree: tree.append(LEAF[:31]),
        lambda tree: inclusion_proof([], 0),
        lambda tree: inclusion_proof([LEAF], 1),
        lambda tree: consistency_proof([LEAF], 2),
    ],
)
def test_asking_for_what_the_tree_has_not_is_a_value_error(ask: Callable[[Tree], object]) -> None:
    tree = tree_of(leaves_of(5))
    with pytest.raises(ValueError, match=r"."):
        ask(tree)
    assert tree.root() == mth(leaves_of(5))


@given(st.integers(0, 150), st.randoms(use_true_random=False))
def test_a_tree_comes_back_from_its_stored_nodes_in_any_order_and_grows_on(size: int, shuffle: random.Random) -> None:
    leaves = leaves_of(size + 9)
    tree = Tree()
    nodes = [node for leaf in leaves[:size] for node in tree.append(leaf)]
    assert len(nodes) == 2 * size - size.bit_count()
    shuffle.shuffle(nodes)
    loaded = Tree.load(nodes)
    for leaf in leaves[size:]:
        assert loaded.append(leaf) == tree.append(leaf)
    assert loaded.size == size + 9
    assert loaded.root() == mth(leaves)
    assert loaded.inclusion_proof(size // 2) == path(size // 2, leaves)


@given(st.integers(1, 40), st.data())
def test_a_missing_doubled_or_foreign_node_is_a_storage_error(size: int, data: st.DataObject) -> None:
    tree = Tree()
    nodes = [node for leaf in leaves_of(size) for node in tree.append(leaf)]
    place = data.draw(st.integers(0, len(nodes) - 1))
    level, index, hash_ = nodes[place]
    last_leaf = (size - 1) & 1 == 0 and place == len(nodes) - 1  # without it the nodes are those of a smaller tree
    spoilt = [[*nodes, nodes[place]], [*nodes, (level, size + 1, hash_)], [*nodes, (9, 0, hash_)], [*nodes, (-1, 0, hash_)]]
    spoilt += [] if last_leaf else [nodes[:place] + nodes[place + 1 :]]
    spoilt += [[*nodes[:place], (level, index, hash_[:31]), *nodes[place + 1 :]]]
    for wrong in spoilt:
        with pytest.raises(StorageError):
            Tree.load(wrong)


def test_a_frontier_has_the_root_of_every_tree_that_grows_beside_it() -> None:
    tree, frontier = Tree(), Frontier()
    for size in range(130):
        assert (frontier.size, frontier.root()) == (size, tree.root())
        leaf = leaf_hash(str(size).encode())
        tree.append(leaf)
        frontier.append(leaf)


# Ranges.


@pytest.mark.parametrize("size", range(1, 18))
def test_every_range_of_every_tree_has_a_proof_that_fits_no_other(size: int) -> None:
    leaves = leaves_of(size)
    tree = tree_of(leaves)
    for first in range(size):
        for end in range(first + 1, size + 1):
            proof = tree.range_proof(first, end)
            verify_range(leaves[first:end], first, size, proof, tree.root())
            for other in range(size + 1):
                if other != first:
                    with pytest.raises(ProofError):
                        verify_range(leaves[first:end], other, size, proof, tree.root())
            for wrong in (leaves[first : end - 1], [*leaves[first:end], leaves[0]], [*leaves[first : end - 1], bytes(32)]):
                with pytest.raises(ProofError):
                    verify_range(wrong, first, size, proof, tree.root())
            for wrong_proof in (proof[:-1], proof[1:], [*proof, bytes(32)], proof[::-1]):
                if wrong_proof != proof:
                    with pytest.raises(ProofError):
                        verify_range(leaves[first:end], first, size, wrong_proof, tree.root())


@given(st.integers(1, 300), st.data())
def test_a_range_of_one_leaf_has_the_hashes_of_its_inclusion_proof_and_all_leaves_need_none(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    tree = tree_of(leaves)
    index, of = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    assert sorted(tree.range_proof(index, index + 1)) == sorted(tree.inclusion_proof(index))
    assert tree.range_proof(0, size) == []
    first = data.draw(st.integers(0, of - 1))
    end = data.draw(st.integers(first + 1, of))
    proof = tree.range_proof(first, end, of)
    assert len(proof) <= 2 * of.bit_length()
    verify_range(leaves[first:end], first, of, proof, tree.root(of))


@pytest.mark.parametrize("arguments", [([], 0, 4, [], bytes(32)), ([bytes(32)], -1, 4, [], bytes(32)), ([bytes(32)], 4, 4, [], bytes(32))])
def test_a_range_that_the_tree_has_not_is_a_proof_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ProofError):
        verify_range(*arguments)
    tree = tree_of([bytes(32)])
    for first, end in ((0, 0), (-1, 1), (0, 2)):
        with pytest.raises(ValueError, match="has no leaves"):
            tree.range_proof(first, end)
