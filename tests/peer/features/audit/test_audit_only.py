"""``manta-peer join --audit-only``: what does not go with it is told in one line before anything is loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.peer.config import PeerConfig, check_join
from manta_swarm.peer.features.audit.plugin import AuditPlugin
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import AuditRules
from tests.runs import manifest_of

ADDRESS = f"/ip4/127.0.0.1/tcp/1/p2p/{'12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB'}"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"light": True}, "--light"),
        ({"gateway": ("127.0.0.1:0",)}, "--gateway"),
        ({"view": "left"}, "--view"),
        ({"alone": True, "workers": 2}, "--alone, --workers"),
        ({"cohort": "attic"}, "--cohort"),
        ({"payout": "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"}, "--payout"),
    ],
)
def test_what_only_who_trains_has_a_use_for_is_refused(tmp_path: Path, settings: dict[str, Any], what: str) -> None:
    config = PeerConfig(dir=tmp_path, initial_peers=(ADDRESS,), audit_only=True, **settings)
    with pytest.raises(UserError, match=f"^--audit-only.*leave {what} out$"):
        check_join(config)


def test_the_limits_and_all_that_says_where_the_run_is_go_with_it(tmp_path: Path) -> None:
    check_join(PeerConfig(dir=tmp_path, initial_peers=(ADDRESS,), audit_only=True, listen=("none",), audit=25, cpu_threads=1, gpus="none"))


def test_a_run_without_audits_is_refused(tmp_path: Path) -> None:
    operator = Identity(b"\x0b" * 32)
    manifest, config = manifest_of(operator), PeerConfig(dir=tmp_path, audit_only=True)
    with pytest.raises(UserError, match=r"^--audit-only: the run test has no audits; leave it out to train$"):
        AuditPlugin().check(config, manifest)
    AuditPlugin().check(config, replace(manifest, audits=(AuditRules((operator.public_key,)),)))
