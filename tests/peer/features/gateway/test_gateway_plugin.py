"""Where there can be a gateway: not for images in shards, and not where several local steps are audited."""

from dataclasses import replace

import pytest

from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.gateway.plugin import GatewayPlugin
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import Identity
from tests.audited import RULES
from tests.runs import EXCHANGE, manifest_of

OPERATOR = Identity(b"\x01" * 32)
CONFIG = PeerConfig(gateway=("127.0.0.1:0",))
REFUSAL = "samples of shards-noise are of many sizes and cannot be handed out: leave --gateway out"


def test_a_gateway_of_images_in_shards_is_refused_in_a_line_before_any_shard_is_got() -> None:
    """It is refused when the peer has met its run: ``peer.joining`` gets the data after that."""
    with pytest.raises(UserError, match=REFUSAL):
        GatewayPlugin().check(CONFIG, manifest_of(OPERATOR, dataset="shards-noise"))


def test_a_gateway_where_several_local_steps_are_audited_is_refused_in_a_line() -> None:
    steps, audited = replace(EXCHANGE, local_steps=4), (RULES,)
    with pytest.raises(UserError, match=r"several local steps are audited.*leave --gateway out"):
        GatewayPlugin().check(CONFIG, manifest_of(OPERATOR, exchange=steps, audits=audited))
    GatewayPlugin().check(PeerConfig(), manifest_of(OPERATOR, exchange=steps, audits=audited))
    GatewayPlugin().check(CONFIG, manifest_of(OPERATOR, audits=audited))
    GatewayPlugin().check(CONFIG, manifest_of(OPERATOR, exchange=steps))
