"""How a local swarm did: what its programs say of themselves (their status.json), the checks, and the report for people and programs.

Decides and formats; starts nothing and waits for nothing. The numbers of a peer are the peer's own word; state, rounds, ledger and credits
come from the aggregator and from the verification of its log.
"""

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.status import AggregatorStatus, OwnQuality, Quality
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.protocol.footprint import in_words
from manta_swarm.protocol.private import SHARED

_AIMS = {"digits": (97.0, 93.0)}  # percent on held-out data: what the largest and the smallest are meant to reach in a full schedule


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class QualityLimits(_Part):
    """The quality that the largest and the smallest subnet have to reach; None sets no limit."""

    min_largest: float | None = None  # percent
    min_smallest: float | None = None
    max_epe: float | None = None  # pixels, of both
    beats_constant: bool = False  # both err less than a constant disparity


class PeerFate(Enum):
    """How a peer's part in the run ended."""

    FINISHED = "finished"  # it ended by itself, with the run
    KILLED = "killed"  # somebody's signal ended it
    LEFT = "left"  # it ended before the run did, as it was asked to
    LATE = "late"  # the run was over, and it did not end
    FAILED = "failed"  # it ended by itself, with an error


def fate(returncode: int, status: PeerStatus) -> PeerFate:
    """Return how a peer ended that nobody of ours had stopped."""
    if returncode in (-9, -15, -2):
        return PeerFate.KILLED
    if returncode == 0 and status.finished:
        return PeerFate.FINISHED
    return PeerFate.LEFT if returncode in (0, 130) else PeerFate.FAILED


class PeerReport(_Part):
    """What one peer did in the run."""

    name: str
    key: str
    cohort: str
    fate: PeerFate
    round: int
    state: str
    rounds_counted: int
    samples_counted: int
    samples_lost: int
    dropped: dict[str, int]
    promises_broken: int
    bytes_handed_in: int  # bodies that it sent to the log
    own_largest: float | None  # share of right ones of its own held-out images, where it has some
    own_smallest: float | None
    credits: int

    @classmethod
    def make(cls, name: str, status: PeerStatus, fate: PeerFate, credits: int) -> "PeerReport":
        """Return the report of a peer whose last status this is."""
        of_status = {field: getattr(status, field) for field in cls.model_fields if field not in ("name", "fate", "credits")}
        return cls(name=name, fate=fate, credits=credits, **of_status)


class LedgerReport(_Part):
    """What the verification of the log said."""

    verified: bool
    size: int
    root: str
    detail: str


class ReportCheck(_Part):
    """One thing that has to hold for the run to have succeeded."""

    name: str
    passed: bool
    detail: str


class Report(_Part):
    """A local swarm's outcome; ``report.json``. Accuracies are from 0 to 1, limits and aims of them in percent; errors in pixels."""

    succeeded: bool
    checks: tuple[ReportCheck, ...]
    run: str
    name: str
    task: str
    dataset: str
    data: str  # "shared" | "private": then credits cannot be audited
    supernet: str
    algorithm: str
    schedule: str
    seed: int
    cohorts: int
    local_steps: int
    codec: str
    num_rounds: int
    rounds_committed: int
    samples_counted: int  # by the peers' own count
    samples_lost: int  # likewise: trained, and in no round
    refused: dict[str, int]  # by the log, by reason
    state: str
    all_peers_agree: bool
    quality: Quality | None
    own_quality: OwnQuality | None  # by the peers' own word
    aim_largest: float | None
    aim_smallest: float | None
    limits: QualityLimits
    ledger: LedgerReport
    peers: tuple[PeerReport, ...]
    wall_time_s: float
    directory: str


def make_report(
    status: AggregatorStatus,
    peers: tuple[PeerReport, ...],
    ledger: LedgerReport,
    *,
    run: RunConfig,
    cohorts: int,
    limits: QualityLimits,
    wall_time_s: float,
    directory: Path,
) -> Report:
    """Return the report, the checks made."""
    checks = (
        _check_rounds(status),
        _check_peers(peers),
        _check_states(status, peers),
        ReportCheck(name="ledger verifies", passed=ledger.verified, detail=ledger.detail),
        _check_inclusion_promises(peers),
        *_check_quality("largest", limits, limits.min_largest, status.quality, status.quality.largest if status.quality else None),
        *_check_quality("smallest", limits, limits.min_smallest, status.quality, status.quality.smallest if status.quality else None),
    )
    aim_largest, aim_smallest = (_AIMS.get(status.dataset) if status.data == SHARED else None) or (None, None)
    return Report(
        succeeded=all(check.passed for check in checks),
        checks=checks,
        run=status.run,
        name=status.name,
        task=status.task,
        dataset=status.dataset,
        data=status.data,
        supernet=status.supernet,
        algorithm=run.run.algorithm,
        schedule=run.run.schedule,
        seed=run.run.seed,
        cohorts=cohorts,
        local_steps=run.exchange.local_steps,
        codec=run.exchange.codec,
        num_rounds=status.num_rounds,
        rounds_committed=status.round,
        samples_counted=sum(peer.samples_counted for peer in peers),
        samples_lost=sum(peer.samples_lost for peer in peers),
        refused=dict(status.refused),
        state=status.state,
        all_peers_agree=_check_states(status, peers).passed,
        quality=status.quality,
        own_quality=status.own_quality,
        aim_largest=aim_largest,
        aim_smallest=aim_smallest,
        limits=limits,
        ledger=ledger,
        peers=peers,
        wall_time_s=round(wall_time_s, 1),
        directory=str(directory),
    )


def _check_rounds(status: AggregatorStatus) -> ReportCheck:
    detail = f"{status.round} of {status.num_rounds}"
    return ReportCheck(name="every round is committed", passed=status.round == status.num_rounds and status.finished, detail=detail)


def _check_peers(peers: tuple[PeerReport, ...]) -> ReportCheck:
    fates = Counter(peer.fate for peer in peers)
    passed = fates[PeerFate.FINISHED] > 0 and not fates[PeerFate.LATE] and not fates[PeerFate.FAILED]
    detail = ", ".join(f"{count} {fate.value}" for fate, count in fates.items())
    return ReportCheck(name="peers ran to the end", passed=passed, detail=detail)


def _check_states(status: AggregatorStatus, peers: tuple[PeerReport, ...]) -> ReportCheck:
    ended = [peer for peer in peers if peer.fate is PeerFate.FINISHED]
    others = [peer.name for peer in ended if peer.state != status.state]
    detail = f"another state at {', '.join(others)}" if others else f"{len(ended)} peers and the log: {status.state[:16]}"
    return ReportCheck(name="all peers hold the log's state", passed=bool(ended) and bool(status.state) and not others, detail=detail)


def _check_inclusion_promises(peers: tuple[PeerReport, ...]) -> ReportCheck:
    broken = sum(peer.promises_broken for peer in peers)
    return ReportCheck(name="every inclusion promise was kept", passed=not broken, detail=f"{broken} were not" if broken else "all of them")


def _check_quality(
    which: str, limits: QualityLimits, minimum: float | None, quality: Quality | None, value: float | None
) -> tuple[ReportCheck, ...]:
    """Return the checks of one subnet; ``value`` is its figure in ``quality``. What was not evaluated has reached nothing."""
    found = "not evaluated" if quality is None or value is None else shown(quality.metric, value)
    checks = []
    if minimum is not None:
        passed = value is not None and 100 * value >= minimum
        checks.append(ReportCheck(name=f"the {which} subnet reaches {minimum:g} %", passed=passed, detail=found))
    if limits.max_epe is not None:
        passed = value is not None and value <= limits.max_epe
        checks.append(ReportCheck(name=f"the {which} subnet errs by {limits.max_epe:g} px at most", passed=passed, detail=found))
    if limits.beats_constant:
        constant = quality.baseline if quality is not None else None
        passed = value is not None and constant is not None and value < constant
        against = "" if constant is None else f", a constant {shown('epe', constant)}"
        checks.append(ReportCheck(name=f"the {which} subnet beats a constant disparity", passed=passed, detail=f"{found}{against}"))
    return tuple(checks)


def shown(metric: str, value: float) -> str:
    """Return a figure as people read it: an accuracy in percent, an error in pixels."""
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.2f} px"


def show(report: Report, console: Console) -> None:
    """Print the report for a person."""
    console.print(
        f"run {report.name} ({report.algorithm}, {report.schedule}, seed {report.seed})", f"id {report.run}", sep="\n", highlight=False
    )
    console.print(
        "", _peers_table(report), "", _facts_table(report), Text(f"log root          {report.ledger.root}"), sep="\n", soft_wrap=True
    )
    console.print("", _checks_table(report), "", sep="\n")
    failed = [check.name for check in report.checks if not check.passed]
    if failed:
        console.print(Text(f"failed: {'; '.join(failed)}", style="bold red"), soft_wrap=True)
    else:
        console.print(Text("everything that had to hold holds", style="bold green"))
    console.print(Text(f"report.json, logs and the programs' directories: {report.directory}"), soft_wrap=True)
    newest = max(Path(report.directory).glob("aggregator/snapshots/round-*.safetensors"), default=None)
    if newest is not None:
        console.print(
            Text(f"take a network out of it: manta-search export --snapshot {newest} --arch largest --out exported"), soft_wrap=True
        )


def _peers_table(report: Report) -> Table:
    table = Table("peer", "cohort", "end", "state", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("rounds", "samples", "lost", "credits" if report.data == SHARED else "credits (private)"):
        table.add_column(heading, justify="right")
    for peer in report.peers:
        counts = (peer.rounds_counted, peer.samples_counted, peer.samples_lost, peer.credits)
        table.add_row(peer.name, peer.cohort, peer.fate.value, peer.state[:8], *(str(count) for count in counts))
    return table


def _facts_table(report: Report) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row("rounds committed", f"{report.rounds_committed} of {report.num_rounds}, in {report.wall_time_s:.0f} s altogether")
    reasons = Counter[str]()
    for peer in report.peers:
        reasons.update(peer.dropped)
    trained = report.samples_counted + report.samples_lost
    share = f" ({100 * report.samples_counted / trained:.1f} % of those trained)" if trained else ""
    table.add_row("samples counted", f"{report.samples_counted}{share}")
    table.add_row("exchange", f"{_number(report.cohorts, 'cohort')}, {_number(report.local_steps, 'local step')} a round, {report.codec}")
    handed_in = [peer.bytes_handed_in for peer in report.peers if peer.bytes_handed_in]
    if handed_in:
        table.add_row("handed in", f"{in_words(sum(handed_in) / len(handed_in))} a peer, {in_words(max(handed_in))} at most")
    table.add_row("contributions dropped", Text(_counted(reasons)))
    table.add_row("refused by the log", Text(_counted(report.refused)))
    for row in _quality_rows(report):
        table.add_row(*row)
    if report.own_quality is not None:
        own = report.own_quality
        table.add_row("at the peers", f"{own.samples} held-out images of {own.peers} of them, as they say; least, median, best:")
        for which, spread in (("largest", own.largest), ("smallest", own.smallest)):
            table.add_row(f"  {which}", ", ".join(shown("accuracy", each) for each in (spread.least, spread.median, spread.best)))
    table.add_row("log", f"{report.ledger.size} entries")
    return table


def _quality_rows(report: Report) -> list[tuple[str, str]]:
    quality = report.quality
    if quality is None:
        return [("held-out data", "not evaluated")]
    rows = []
    for which, value, aim in (("largest", quality.largest, report.aim_largest), ("smallest", quality.smallest, report.aim_smallest)):
        meant = "" if aim is None else f" (the aim is {aim:g} %)"
        rows.append((f"{which} subnet", f"{shown(quality.metric, value)} on held-out data{meant}"))
    rows.append(("random subnets", ", ".join(shown(quality.metric, each) for each in quality.random)))
    if quality.baseline is not None:
        rows.append(("a constant", f"{shown(quality.metric, quality.baseline)}: the held-out data's median disparity everywhere"))
    return rows


def _number(count: int, of: str) -> str:
    return f"{count} {of}" if count == 1 else f"{count} {of}s"


def _counted(reasons: Mapping[str, int]) -> str:
    detail = ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
    return f"{sum(reasons.values())} ({detail})" if detail else "0"


def _checks_table(report: Report) -> Table:
    table = Table("check", "", "found", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for check in report.checks:
        table.add_row(check.name, Text("yes", "green") if check.passed else Text("NO", "bold red"), Text(check.detail))
    return table
