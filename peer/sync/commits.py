"""The newest commits of the log as a peer knows them."""

from collections.abc import Mapping

from manta_swarm.network.log_client import Commitment
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.manifest import Manifest

_KEPT = MAX_AGE + 32  # commits: back to the oldest base of a table, and some that may come while a state is fetched over a slow line


class NewestCommits:
    """The newest commits of the log, with what proves them, and the exponent floors that they set."""

    def __init__(self, manifest: Manifest) -> None:
        """Know of none but the floor at the run's start."""
        self._commitments: dict[int, Commitment] = {}  # by round
        self._floors: dict[int, int] = {0: manifest.exchange.first_floor}  # by round

    def add(self, commitment: Commitment) -> None:
        """Remember a commit that is newer than all others; the oldest go."""
        entry = commitment.proven.round
        self._commitments[entry.round] = commitment
        self._commitments = {round_: each for round_, each in self._commitments.items() if round_ > entry.round - _KEPT}
        self._floors[entry.round] = entry.floor
        self._floors = {round_: floor for round_, floor in self._floors.items() if round_ > entry.round - _KEPT}

    @property
    def floors(self) -> Mapping[int, int]:
        """The exponent floors by round."""
        return self._floors

    def commitment(self, round_: int) -> Commitment | None:
        """Return one of the newest commits with what proves it."""
        return self._commitments.get(round_)
