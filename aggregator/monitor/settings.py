"""The run file's [monitor]."""

from pydantic import Field, field_validator

from manta_swarm.aggregator.settings.base import Section
from manta_swarm.runtime.listen_address import host_and_port

DEFAULT_ADDRESS = "127.0.0.1:8787"
DIRECTORY = "monitor"  # in the run's: what the monitor's processes write


class MonitorSection(Section):
    """[monitor] (not part of the manifest: may change at any start)"""

    address: str = Field(default=DEFAULT_ADDRESS, description="HOST:PORT of its page; on loopback only this computer sees it; empty: none")
    purpose: str = Field(
        default="", max_length=1000, description="what the run is for, shown on the page; empty: a sentence about the task"
    )
    host_names: tuple[str, ...] = Field(default=(), description="on loopback: names by which a reverse proxy asks, as monitor.example.org")
    streams: int = Field(default=500, ge=1, le=10_000, description="pages kept up to date at a time; further ones are told so")
    evaluate_share: float = Field(
        default=0.05, ge=0, le=1, description="share of one core's time for evaluating a few subnets during the run; 0: none"
    )

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address:
            host_and_port(address)
        return address
