"""Nodes that are held to a run's admission, over libp2p and hivemind's DHT: what a stranger gets of them."""

from pathlib import Path

import pytest

from manta_swarm.network.admission_filter import NOT_ADMITTED, AdmissionFilter, AdmittedKeys, stranger_told
from manta_swarm.network.node import Node
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.admission import MEMBER, AdmissionProof, AdmissionRule
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from tests.network.nodes import LARGE, PEERS, SMALL, echo, with_nodes
from tests.runs import manifest_of

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]

OPERATOR = Identity(b"operator".ljust(32, b"."))
SIGNED = SignedManifest.sign(manifest_of(OPERATOR, admission=AdmissionRule("invitation")), OPERATOR)


async def filter_of(node: Node, *, has_proof: bool) -> AdmissionFilter:
    """Return a node's admission filter, open, with a method "echo"."""
    manifest, named = SIGNED.open(), Admitted(SIGNED.open(), SIGNED.run)
    own = Signed.sign(AdmissionProof(SIGNED.run, OPERATOR.public_key, node.key, MEMBER), OPERATOR) if has_proof else None
    admission_filter = AdmissionFilter(node, AdmittedKeys(manifest, SIGNED.run, named), own, stranger_told(manifest))
    await admission_filter.open()
    await admission_filter.serve("echo", echo)
    return admission_filter


def test_members_call_each_other_and_find_each_others_records_and_a_stranger_neither(tmp_path: Path) -> None:
    async def work(first: Node, second: Node, third: Node) -> None:
        alice, bob = await filter_of(first, has_proof=True), await filter_of(second, has_proof=True)
        for request in (SMALL, LARGE):
            assert await alice.call(bob.key, "echo", request, timeout_s=30) == alice.key + request
            with pytest.raises(Refused, match=f"{NOT_ADMITTED}: .* ask its operator for an invitation"):
                await third.call(bob.key, "echo", request, timeout_s=30)
        await alice.publish("members", b"alice", ttl_s=60)
        await third.publish("members", b"a plain one", ttl_s=60)
        await (await filter_of(third, has_proof=False)).publish("members", b"one without an admission proof", ttl_s=60)
        assert await bob.lookup("members") == {alice.key: b"alice"}
        kept = {owner for held in (first, second) for _, item in held.dht.protocol.storage.items() for owner in item.value.data}
        assert len(kept) == 1
        assert PEERS[0].public_key in next(iter(kept))

    with_nodes(tmp_path, 3, work)
