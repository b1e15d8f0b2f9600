"""Histories of one run's log for tests of witnesses, and a child process that is a witness's rule until it is killed."""

import sys
from pathlib import Path

from manta_swarm.aggregator.features.witness.rule import NotCosigned, WitnessMemory
from manta_swarm.protocol.errors import ProofError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, sign_tree_head
from manta_swarm.protocol.signing import Identity
from tests.runs import manifest_of

OPERATOR, WITNESS = Identity(b"\x01" * 32), Identity(b"\x03" * 32)
SIGNED = SignedManifest.sign(manifest_of(OPERATOR), OPERATOR)


class History:
    """A log that the operator signs for: the same entries up to ``fork``, then others for each ``branch``."""

    def __init__(self, memory: WitnessMemory, size: int, fork: int = 0, branch: bytes = b"") -> None:
        self.name, self.tree = memory.origin, Tree()
        for index in range(size):
            self.tree.append(leaf_hash(b"entry %d" % index + (branch if index >= fork else b"")))

    def note(self, size: int) -> str:
        return sign_tree_head(TreeHead(self.name, size, self.tree.root(size)), self.name, OPERATOR)

    def proof(self, old: int, new: int) -> list[bytes]:
        return self.tree.consistency_proof(old, new)


def cosign_until_killed(directory: Path) -> None:
    """Be asked for heads of two histories in turn, and print each cosignature that is given: size, root."""
    memory = WitnessMemory(directory, WITNESS, SIGNED)
    most = 100_000
    start = memory.head.size
    one, other = (History(memory, start + 400, fork=0, branch=branch) for branch in (b"a", b"b"))
    for size in range(max(1, start - 1), min(most, start + 400)):
        for history in (one, other) if size % 2 else (other, one):
            held = memory.head.size
            if held > size:
                continue
            try:
                memory.cosign(history.note(size), held, history.proof(held, size))
            except (NotCosigned, ProofError):
                continue
            print(size, history.tree.root(size).hex(), flush=True)


if __name__ == "__main__":
    cosign_until_killed(Path(sys.argv[1]))
