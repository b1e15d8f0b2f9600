"""The folder of a run whose contributions are audited: a real log, whose rounds are made without training. For the tests of this folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.verify import Verification, verify_directory
from manta_swarm.aggregator.monitor.settings import DIRECTORY
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Header, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import Settlement, Verdict
from tests.audited import OPERATOR, audited_ledger, works_of
from tests.contributions import PEERS, in_order, round_of
from tests.runs import FixedTrainingSpec


class AuditedRun:
    """A run with a log, which grows a round at a time; the rules are those of ``tests.audited``, unless they are changed."""

    def __init__(self, directory: Path, num_rounds: int = 40, **rules: Any) -> None:
        self.directory = directory
        signed = SignedManifest.sign(audited_ledger(num_rounds, **rules).manifest, OPERATOR)
        self.log = Log.create(directory, signed, OPERATOR, training_spec_of=lambda _: FixedTrainingSpec())
        (directory / DIRECTORY).mkdir()  # the monitor's

    @property
    def ledger(self) -> Ledger:
        """What the log adds up to."""
        return self.log.ledger

    def round(self, *verdicts: Signed[Verdict], peers: Iterable[Identity] = PEERS[:3], payout: bytes | None = None) -> None:
        """Commit a round in which these peers worked, each alone, after these verdicts; their claims name ``payout``, if it is given."""
        self.hand_in(works_of(self.ledger, peers, payout), *verdicts)

    def hand_in(self, headers: Iterable[Header], *verdicts: Signed[Verdict]) -> None:
        """Commit a round of these contributions, after these verdicts."""
        before, table = _entries(verdicts), in_order(headers)
        listed = [self.ledger.listed(header, self.ledger.round + 1) for header in table]
        self.log.commit([*before, *map(entry_of, table), entry_of(round_of(self.ledger, listed, before=len(before)))])

    def rounds_to_the_end(self, peers: Iterable[Identity] = PEERS[:3]) -> None:
        """Commit what is left of the run's rounds."""
        while not self.ledger.finished:
            self.round(peers=peers)

    def settle(self, *verdicts: Signed[Verdict]) -> None:
        """Commit the settlement, after these verdicts."""
        self.log.commit([*_entries(verdicts), entry_of(Settlement(self.ledger.run, self.ledger.last_commit))])

    def verified(self) -> Verification:
        """Return what the log adds up to, checked from scratch."""
        return verify_directory(self.directory, training_spec_of=lambda _: FixedTrainingSpec())


def _entries(verdicts: Iterable[Signed[Verdict]]) -> list[bytes]:
    return [entry_of(verdict) for verdict in sorted(verdicts, key=lambda verdict: verdict.digest)]
