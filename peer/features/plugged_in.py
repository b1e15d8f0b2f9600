"""All features of a peer: the one place that knows them. A plain swarm trains without any of them (``tests/peer/test_session.py``).

What light contributors do is no feature of a peer, but a program of its own: ``manta-peer join --light`` (``peer.features.light.session``).
"""

from manta_swarm.peer.features.audit.plugin import AuditPlugin
from manta_swarm.peer.features.evaluation.plugin import EvaluationPlugin
from manta_swarm.peer.features.gateway.plugin import GatewayPlugin
from manta_swarm.peer.features.plugin import Plugins
from manta_swarm.peer.features.private.plugin import PrivatePlugin
from manta_swarm.peer.features.shards.plugin import ShardsPlugin
from manta_swarm.peer.features.two_views.plugin import TwoViewsPlugin

PLUGGED_IN = Plugins((AuditPlugin(), PrivatePlugin(), GatewayPlugin(), TwoViewsPlugin(), EvaluationPlugin(), ShardsPlugin()))
