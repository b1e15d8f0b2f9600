"""What a feature of an operator's program may do: a plain run is served without any of them.

A feature is an object with the session's events. It does nothing at an event that it does not override. The session knows features by this
class alone; a feature is made of the run's context. ``aggregator.features.plugged_in`` lists each feature once.
"""

from collections.abc import Mapping, Sequence

from manta_swarm.aggregator.commit.writing import Committer


class Feature:
    """A part of an operator's program that others do without. All methods run in the session's event loop."""

    is_sidecar = False  # a peer of the run in a process of its own: it ends first, while the log still takes what it hands in

    @property
    def committer(self) -> Committer | None:
        """What has rounds committed here in the place of a lone operator; None: this feature has nothing to do with that."""
        return None

    async def serve(self) -> None:
        """Answer from now on.

        Raises:
            UserError: what the person asked for cannot be had; the message says what to do.
        """

    async def run(self, addresses: Sequence[str]) -> None:
        """Do what is to be done beside the rounds, until this is cancelled or nothing is left to do; the node is at ``addresses``.

        Raises:
            UserError: as ``serve``.
            StorageError: the disk failed, and the program cannot go on.
        """

    def on_committed(self, *, is_leader: bool) -> None:
        """The log has a new round, or is settled; ``is_leader``: this operator writes."""

    def status(self) -> Mapping[str, object]:
        """Return fields of ``aggregator.status.AggregatorStatus`` that only this feature knows."""
        return {}
