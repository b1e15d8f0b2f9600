"""Verdicts computed again by whoever has a copy of a run's folder: each finding in its log, on the state and the records that it was about.

Nothing is signed or written. What is too old for its state or its records to be kept cannot be repeated, and is said to be that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aggregator.audits.auditor import Auditor
from aggregator.audits.jobs import MISSED, Job
from aggregator.log.storage import is_at_rest, read_manifest, reading
from aggregator.log.verify import verify_directory
from automl.data.catalog import load_dataset
from protocol.audits import HOLDS, WITHHELD, Finding, SignedFinding
from protocol.ledger import Ledger
from protocol.records import Header, Round, SignedClaim, SignedContribution, commit_digest, open_entry
from protocol.residuals import was_left
from protocol.vectors import step_asked


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
    read = _read(directory)
    wanted = [finding for finding in read.findings if all_of_them or finding.outcome != HOLDS]
    if not wanted:
        return
    manifest = read_manifest(directory).open()
    auditor = Auditor(manifest, load_dataset(manifest.dataset, data_root), directory)
    for finding in wanted:
        signed, listed = read.claims[finding.claim], read.contributions[finding.claim]
        claim = signed.open()
        if finding.outcome == WITHHELD:
            yield Repeated(finding, claim.key, MISSED, "what nobody showed, nobody can compute with")
            continue
        job = Job(
            claim=signed,
            check=finding.check,
            lot=finding.lot,
            round=finding.round,
            contribution=listed.digest,
            floor=ledger.floor_at(claim.round - 1),
            state=ledger.state_at(claim.round - 1),
            step=step_asked(read.beacons[finding.round], finding.claim, len(claim.steps)),
            deep=int(len(listed.open().claims) > 1),  # whoever accuses a member of a cohort has looked that deep
            left=int(was_left(claim, finding.round, ledger.course.sorts_after, read.left.__getitem__)),
        )
        found = auditor.answer(job)
        yield Repeated(finding, claim.key, found.outcome, found.reason)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a log says that findings are about."""

    claims: dict[bytes, SignedClaim] = field(default_factory=dict)  # by digest
    contributions: dict[bytes, SignedContribution] = field(default_factory=dict)  # by claim: the one that lists it
    beacons: dict[int, bytes] = field(default_factory=dict)  # by round of the table
    left: dict[int, dict[bytes, bytes]] = field(default_factory=dict)  # by round, the residual that its table left to each key
    findings: list[Finding] = field(default_factory=list)  # in order


def _read(directory: Path) -> _Read:
    """Return what the log in a folder says; it is known to hold."""
    found, left = _Read(), dict[bytes, bytes]()
    with reading(directory, at_rest=is_at_rest(directory)) as connection:
        for (entry,) in connection.execute("SELECT bytes FROM entries ORDER BY position"):
            record = open_entry(entry)
            if isinstance(record, Header):
                opened = record.contribution.open()
                found.claims.update({signed.digest: signed for signed in record.claims})
                found.contributions.update({signed.digest: record.contribution for signed in record.claims})
                left |= {found.claims[claim].open().key: opened.residual for claim in opened.in_body if opened.residual}
            elif isinstance(record, Round):
                found.left[record.round], left = left, {}
                found.beacons[record.round - 1] = commit_digest(entry)
            elif isinstance(record, SignedFinding):
                found.findings.append(record.open())
    return found
