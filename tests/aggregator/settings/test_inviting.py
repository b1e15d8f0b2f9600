"""An operator's invitation says in words whom it lets in, and to do what."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.settings.inviting import invitation
from manta_swarm.protocol.admission import GUEST, INVITATION, MEMBER, PROVEN, AdmissionRule
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.runtime.disk import IDENTITY, load_identity
from tests.audited import RULES
from tests.runs import FixedTrainingSpec, manifest_of


@pytest.mark.parametrize(
    ("keys", "access", "words"),
    [
        (1, MEMBER, "an invitation for 1 peer to train, until round 40"),
        (2, MEMBER, "an invitation for 2 peers to train, until round 40"),
        (3, GUEST, "an invitation for 3 peers to look on, until round 40"),
        (1, PROVEN, "an invitation for 1 peer to train, proven from the start, until round 40"),
    ],
)
def test_an_invitation_says_how_many_it_lets_in_and_what_they_may_do(tmp_path: Path, keys: int, access: str, words: str) -> None:
    operator = load_identity(tmp_path / IDENTITY)
    manifest = manifest_of(operator, num_rounds=40, admission=AdmissionRule(INVITATION), audits=(RULES,))
    Log.create(tmp_path, SignedManifest.sign(manifest, operator), operator, training_spec_of=lambda _: FixedTrainingSpec()).close()
    assert invitation(tmp_path, keys=keys, access=access).words == words
