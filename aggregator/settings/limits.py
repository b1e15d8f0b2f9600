"""What strangers may ask of a run's log: [limits] of the run file."""

from pydantic import Field

from manta_swarm.aggregator.settings.base import Section
from manta_swarm.network.rates import CALLS_OF_ADDRESS, CALLS_OF_KEY, CallLimits
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.manifest import Manifest


class LimitsSection(Section):
    """[limits] (not part of the manifest: may change at any start)"""

    calls_of_key: int = Field(
        default=CALLS_OF_KEY,
        ge=50,
        description="calls a second that one peer may make; ten seconds' at once; handing in a contribution counts as 20",
    )
    calls_of_address: int = Field(
        default=CALLS_OF_ADDRESS,
        ge=50,
        description="the same for all peers of one network address; of IPv6 a /64; not for this computer",
    )
    address_percent: int = Field(
        default=75,
        ge=1,
        le=100,
        description="percent of a round's places that one network address has at most; more while others leave them",
    )

    def calls(self) -> CallLimits:
        """Return what a node keeps to."""
        return CallLimits(self.calls_of_key, self.calls_of_address)

    def closing(self, manifest: Manifest) -> Closing:
        """Return the rounds of a run, before the first is open."""
        return Closing(manifest.exchange.max_rows, self.address_percent, shares_keys=manifest.audits_steps)
