"""Verdicts computed again by whoever has a copy of a run's folder: each finding in its log, on the state and the records that it was about.

Nothing is signed or written. What is too old for its state or its records to be kept cannot be repeated, and is said to be that.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aggregator.audits.auditor import Auditor
from aggregator.audits.jobs import MISSED, Job
from aggregator.log.storage import is_at_rest, read_manifest, reading
from aggregator.log.verify import verify_directory
from automl.data.catalog import load_dataset
from protocol.audits import HOLDS, WITHHELD, Finding, SignedFinding
from protocol.ledger import Ledger
from protocol.records import SignedClaim, SignedContribution, open_entry


@dataclass(frozen=True, slots=True)
class Repeated:
    """One finding, and what comes out here."""

    finding: Finding
    key: bytes  # whose claim it is about
    outcome: str  # of ``protocol.audits.OUTCOMES``, or MISSED
    reason: str  # for people

    @property
    def agrees(self) -> bool | None:
        """Whether the same comes out; None: that cannot be found out here."""
        return None if self.outcome == MISSED else self.outcome == self.finding.outcome


def repeat(directory: Path, data_root: Path | None, *, all_of_them: bool = False) -> Iterator[Repeated]:
    """Yield the findings of the log in ``directory`` that speak against somebody, or all of them, each computed again.

    Raises:
        UserError: there is no log, or its data are not here.
        StorageError: the log does not hold.
    """
    last: list[Ledger] = []
    verify_directory(directory, on_round=lambda ledger: last.__setitem__(slice(None), [ledger]))
    if not last:
        return
    (ledger,) = last
    claims, contributions, findings = _read(directory)
    wanted = [finding for finding in findings if all_of_them or finding.outcome != HOLDS]
    if not wanted:
        return
    manifest = read_manifest(directory).open()
    auditor = Auditor(manifest, load_dataset(manifest.dataset, data_root), directory)
    for finding in wanted:
        signed = claims[finding.claim]
        claim = signed.open()
        if finding.outcome == WITHHELD:
            yield Repeated(finding, claim.key, MISSED, "that nobody gave its records, nobody can compute")
            continue
        job = Job(
            claim=signed,
            check=finding.check,
            lot=finding.lot,
            round=finding.round,
            contribution=contributions[finding.claim],
            floor=ledger.floor_at(claim.round - 1),
            state=ledger.state_at(claim.round - 1),
        )
        found = auditor.answer(job)
        yield Repeated(finding, claim.key, found.outcome, found.reason)


def _read(directory: Path) -> tuple[dict[bytes, SignedClaim], dict[bytes, bytes], list[Finding]]:
    """Return the claims of a log by digest, the contribution that lists each, and its findings, in order; the log is known to hold."""
    claims, listed, findings = dict[bytes, SignedClaim](), dict[bytes, bytes](), list[Finding]()
    with reading(directory, at_rest=is_at_rest(directory)) as connection:
        for (entry,) in connection.execute("SELECT bytes FROM entries ORDER BY position"):
            record = open_entry(entry)
            if isinstance(record, SignedClaim):
                claims[record.digest] = record
            elif isinstance(record, SignedContribution):
                listed.update(dict.fromkeys(record.open().claims, record.digest))
            elif isinstance(record, SignedFinding):
                findings.append(record.open())
    return claims, listed, findings
