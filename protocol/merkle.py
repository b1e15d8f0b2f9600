"""The Merkle tree of RFC 9162 section 2.1: hashes, roots, inclusion and consistency proofs, proofs of ranges, and their verification.

``Tree`` grows leaf by leaf and keeps every complete subtree, so that a root or a proof of any size it has had is cheap. It keeps
hashes only: the entries, and storing the nodes durably, are the log's.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from manta_swarm.protocol.errors import ProofError, StorageError

HASH_BYTES = 32
MAX_SIZE = 2**62  # leaves; keeps every number in a proof's arithmetic a small one
EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of one entry, ``SHA-256(00 || data)``."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node, ``SHA-256(01 || left || right)``."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaf_hashes: Iterable[bytes]) -> bytes:
    """Return the root over ``leaf_hashes`` in order; of none of them it is SHA-256 of nothing."""
    return _grow(leaf_hashes).root()


def inclusion_proof(leaf_hashes: Iterable[bytes], index: int) -> list[bytes]:
    """Return the inclusion proof of leaf ``index`` in the tree of all ``leaf_hashes`` (RFC 9162 section 2.1.3.1).

    Raises:
        ValueError: there is no such leaf.
    """
    return _grow(leaf_hashes).inclusion_proof(index)


def consistency_proof(leaf_hashes: Iterable[bytes], old_size: int) -> list[bytes]:
    """Return the proof that the first ``old_size`` leaves are a prefix of ``leaf_hashes`` (RFC 9162 section 2.1.4.1).

    It is empty for an ``old_size`` of 0 or of all of them.

    Raises:
        ValueError: there are fewer leaves than ``old_size``.
    """
    return _grow(leaf_hashes).consistency_proof(old_size)


def verify_inclusion(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Check that ``leaf_hash`` is leaf ``index`` of the tree with ``size`` leaves and this ``root`` (RFC 9162 section 2.1.3.2).

    Raises:
        ProofError: the proof does not show that, or any argument is malformed.
    """
    _check_hashes((leaf_hash, root), "a hash")
    path = _checked_path(proof)
    _check_size(size)
    if type(index) is not int or not 0 <= index < size:
        raise ProofError(f"a tree of {size} leaves has no leaf {index!r}")
    position, last = index, size - 1
    found = leaf_hash
    for sibling in path:
        if last == 0:
            raise ProofError("the inclusion proof is too long")
        if position & 1 or position == last:
            found = node_hash(sibling, found)
            while position & 1 == 0 and position:  # a last node without a sibling was carried up as it is
                position, last = position >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        position, last = position >> 1, last >> 1
    if last != 0:
        raise ProofError("the inclusion proof is too short")
    if found != root:
        raise ProofError("the inclusion proof leads to another root")


def verify_consistency(old_size: int, new_size: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> None:
    """Check that the tree of ``old_size`` leaves and ``old_root`` is a prefix of the new one (RFC 9162 section 2.1.4.2).

    The empty tree is a prefix of every tree, by an empty proof.

    Raises:
        ProofError: the proof does not show that, or any argument is malformed.
    """
    _check_hashes((old_root, new_root), "a root")
    path = _checked_path(proof)
    _check_size(old_size)
    _check_size(new_size)
    if old_size > new_size:
        raise ProofError(f"a tree of {old_size} leaves is no prefix of one of {new_size}")
    for size, root_ in ((old_size, old_root), (new_size, new_root)):
        if size == 0 and root_ != EMPTY_ROOT:
            raise ProofError("this is not the root of the empty tree")
    if old_size in (0, new_size):
        if path:
            raise ProofError("the consistency proof is too long")
        if old_size == new_size and old_root != new_root:
            raise ProofError("two roots of trees of one size")
        return
    if old_size & (old_size - 1) == 0:
        path = (old_root, *path)  # the old tree is one complete subtree: its root starts the path
    _climb_consistency(old_size - 1, new_size - 1, path, old_root, new_root)


def verify_range(leaf_hashes: Sequence[bytes], first: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Check that ``leaf_hashes`` are leaves ``first``, ``first`` + 1, ... of the tree with ``size`` leaves and this ``root``.

    The proof has the root of every largest subtree that has none of these leaves, from the left to the right.

    Raises:
        ProofError: the proof does not show that, or any argument is malformed.
    """
    _check_hashes((*leaf_hashes, root), "a hash")
    path = iter(_checked_path(proof))
    _check_size(size)
    end = first + len(leaf_hashes)
    if type(first) is not int or not 0 <= first < end <= size:
        raise ProofError(f"a tree of {size} leaves has no leaves {first!r} to {end - 1}")

    def found(low: int, high: int) -> bytes:
        if high <= first or end <= low:
            given = next(path, None)
            if given is None:
                raise ProofError("the proof of a range is too short")
            return given
        if high - low == 1:
            return leaf_hashes[low - first]
        middle = low + _left_size(high - low)
        return node_hash(found(low, middle), found(middle, high))

    if found(0, size) != root:
        raise ProofError("the proof of a range leads to another root")
    if next(path, None) is not None:
        raise ProofError("the proof of a range is too long")


def _climb_consistency(position: int, last: int, path: tuple[bytes, ...], old_root: bytes, new_root: bytes) -> None:
    while position & 1:
        position, last = position >> 1, last >> 1
    if not path:
        raise ProofError("the consistency proof is too short")
    old_found = new_found = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise ProofError("the consistency proof is too long")
        if position & 1 or position == last:
            old_found, new_found = node_hash(sibling, old_found), node_hash(sibling, new_found)
            while position & 1 == 0 and position:
                position, last = position >> 1, last >> 1
        else:
            new_found = node_hash(new_found, sibling)
        position, last = position >> 1, last >> 1
    if last != 0:
        raise ProofError("the consistency proof is too short")
    if old_found != old_root or new_found != new_root:
        raise ProofError("the consistency proof leads to other roots")


def _checked_path(proof: object) -> tuple[bytes, ...]:
    if not isinstance(proof, list | tuple):
        raise ProofError("a proof is a sequence of hashes")
    _check_hashes(proof, "a hash of the proof")
    return tuple(proof)


def _check_hashes(hashes: Iterable[object], what: str) -> None:
    for value in hashes:
        if type(value) is not bytes or len(value) != HASH_BYTES:
            raise ProofError(f"{what} is not {HASH_BYTES} bytes")


def _check_size(size: object) -> None:
    if type(size) is not int or not 0 <= size <= MAX_SIZE:
        raise ProofError(f"{size!r} is no tree size")


class Frontier:
    """The root of a growing tree of which nothing is kept but the roots of its largest complete subtrees."""

    def __init__(self) -> None:
        """Start without leaves."""
        self.size = 0
        self._complete: list[bytes] = []  # one for each bit of ``size``, the largest first

    def append(self, leaf_hash: bytes) -> None:
        """Add a leaf."""
        hash_, rest = leaf_hash, self.size
        while rest & 1:
            hash_, rest = node_hash(self._complete.pop(), hash_), rest >> 1
        self._complete.append(hash_)
        self.size += 1

    def root(self) -> bytes:
        """Return the root over all leaves so far."""
        if not self._complete:
            return EMPTY_ROOT
        *larger, root_ = self._complete
        for hash_ in reversed(larger):
            root_ = node_hash(hash_, root_)
        return root_


def _grow(leaf_hashes: Iterable[bytes]) -> "Tree":
    tree = Tree()
    for hash_ in leaf_hashes:
        tree.append(hash_)
    return tree


class Subtrees(ABC):
    """A tree of which every complete subtree's root is known, wherever these are kept. Node (level, index) is the root over the leaves
    from ``index << level``, ``1 << level`` of them.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of leaves."""

    @abstractmethod
    def node(self, level: int, index: int) -> bytes:
        """Return a complete node of this tree."""

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first ``size`` leaves (default: of all)."""
        size = self._checked(size)
        return self._range_root(0, size) if size else EMPTY_ROOT

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """Return the proof of leaf ``index`` in the tree of the first ``size`` leaves (default: of all).

        Raises:
            ValueError: that tree has no such leaf, or has not been yet.
        """
        size = self._checked(size)
        if not 0 <= index < size:
            raise ValueError(f"a tree of {size} leaves has no leaf {index}")
        path = []
        start, end = 0, size
        while end - start > 1:
            middle = start + _left_size(end - start)
            if index < middle:
                path.append(self._range_root(middle, end))
                end = middle
            else:
                path.append(self._range_root(start, middle))
                start = middle
        return path[::-1]

    def range_proof(self, first: int, end: int, size: int | None = None) -> list[bytes]:
        """Return the proof of the leaves from ``first`` to before ``end`` in the tree of the first ``size`` leaves (default: of all).

        Raises:
            ValueError: that tree has not these leaves, or has not been yet.
        """
        size = self._checked(size)
        if not 0 <= first < end <= size:
            raise ValueError(f"a tree of {size} leaves has no leaves {first} to {end - 1}")

        def beside(low: int, high: int) -> list[bytes]:
            if high <= first or end <= low:
                return [self._range_root(low, high)]
            if first <= low and high <= end:
                return []
            middle = low + _left_size(high - low)
            return [*beside(low, middle), *beside(middle, high)]

        return beside(0, size)

    def consistency_proof(self, old_size: int, new_size: int | None = None) -> list[bytes]:
        """Return the proof that the tree of ``old_size`` leaves is a prefix of that of ``new_size`` (default: of all).

        Raises:
            ValueError: one of the trees has not been yet, or the old one is the larger.
        """
        new_size = self._checked(new_size)
        if not 0 <= old_size <= new_size:
            raise ValueError(f"a tree of {old_size} leaves is no prefix of one of {new_size}")
        if old_size in (0, new_size):
            return []
        path = []
        start, end = 0, new_size
        while end != old_size:  # RFC 9162's SUBPROOF, from the top down
            middle = start + _left_size(end - start)
            if old_size <= middle:
                path.append(self._range_root(middle, end))
                end = middle
            else:
                path.append(self._range_root(start, middle))
                start = middle
        if start:  # else the subtree is the old tree itself, whose root the verifier has
            path.append(self._range_root(start, end))
        return path[::-1]

    def _checked(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise ValueError(f"the tree has {self.size} leaves, not {size}")
        return size

    def _range_root(self, start: int, end: int) -> bytes:
        """Return the root over the leaves ``start`` to ``end`` of a subtree that some tree of this history has."""
        count = end - start
        if count & (count - 1) == 0:
            level = count.bit_length() - 1
            return self.node(level, start >> level)
        middle = start + _left_size(count)
        return node_hash(self._range_root(start, middle), self._range_root(middle, end))


class Tree(Subtrees):
    """A growing tree, all of whose nodes are in memory."""

    def __init__(self) -> None:
        """Start without leaves."""
        self._levels: list[bytearray] = [bytearray()]  # per level the complete nodes, 32 bytes each

    @classmethod
    def load(cls, nodes: Iterable[tuple[int, int, bytes]]) -> "Tree":
        """Return the tree of the stored ``nodes``, in any order: all that ``append`` ever returned.

        Hashes are not recomputed: compare ``root()`` with the signed head.

        Raises:
            StorageError: the nodes are not exactly those of a tree.
        """
        tree = cls()
        for level, index, hash_ in sorted(nodes):
            if not 0 <= level <= len(tree._levels) or len(hash_) != HASH_BYTES:
                raise StorageError(f"a stored node of level {level} does not belong to a tree")
            if level == len(tree._levels):
                tree._levels.append(bytearray())
            if index != tree._count(level):
                raise StorageError(f"node {tree._count(level)} of level {level} is not stored, or stored twice")
            tree._levels[level] += hash_
        if any(tree._count(level) != tree.size >> level for level in range(len(tree._levels))) or tree.size >> len(tree._levels):
            raise StorageError(f"a level of the stored tree of {tree.size} leaves lacks its newest nodes")
        return tree

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._count(0)

    def append(self, leaf_hash: bytes) -> list[tuple[int, int, bytes]]:
        """Add a leaf; returns the nodes now complete as (level, index, hash), the leaf itself first.

        Raises:
            ValueError: the hash has not 32 bytes.
        """
        if len(leaf_hash) != HASH_BYTES:
            raise ValueError(f"a leaf hash has {HASH_BYTES} bytes, not {len(leaf_hash)}")
        level, index, hash_ = 0, self.size, leaf_hash
        completed = [(0, index, hash_)]
        self._levels[0] += hash_
        while index & 1:
            hash_ = node_hash(self.node(level, index - 1), hash_)
            level, index = level + 1, index >> 1
            if level == len(self._levels):
                self._levels.append(bytearray())
            self._levels[level] += hash_
            completed.append((level, index, hash_))
        return completed

    def root_with(self, leaf_hashes: Iterable[bytes]) -> bytes:
        """Return the root that the tree would have with these leaves too."""
        size = self.size
        edge = [(level, self.node(level, (size >> level) - 1)) for level in reversed(range(size.bit_length())) if size >> level & 1]
        for hash_ in leaf_hashes:
            level = 0
            while edge and edge[-1][0] == level:
                hash_, level = node_hash(edge.pop()[1], hash_), level + 1
            edge.append((level, hash_))
        if not edge:
            return EMPTY_ROOT
        found = edge.pop()[1]
        while edge:
            found = node_hash(edge.pop()[1], found)
        return found

    def node(self, level: int, index: int) -> bytes:
        """Return the root over the leaves from ``index << level`` on, ``1 << level`` of them, all of which are there."""
        return bytes(self._levels[level][index * HASH_BYTES : (index + 1) * HASH_BYTES])

    def _count(self, level: int) -> int:
        return len(self._levels[level]) // HASH_BYTES


def _left_size(count: int) -> int:
    """Return the largest power of two below ``count``: how many leaves the left subtree has (RFC 9162 section 2.1.1)."""
    return 1 << ((count - 1).bit_length() - 1)
