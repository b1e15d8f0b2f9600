"""Where a run stands, for other programs: what an aggregator writes into DIR/status.json."""

import os
from dataclasses import dataclass, field

from aggregator.rounds.measures import OwnQuality
from automl.evaluation.held_out import QualityReport
from protocol.private import SHARED


@dataclass
class OperatorStatus:
    """DIR/status.json."""

    run: str
    name: str
    task: str
    dataset: str
    supernet: str
    num_rounds: int
    data: str = SHARED
    pid: int = field(default_factory=os.getpid)
    addresses: tuple[str, ...] = ()
    gateway: str = ""  # where its gateway leases lots to light contributors, once it has answered
    round: int = 0
    state: str = ""
    ledger_size: int = 0
    ledger_root: str = ""
    quality: QualityReport | None = None
    quality_round: int | None = None
    own_quality: OwnQuality | None = None  # where data are private: how good the peers say that it is on their own images
    finished: bool = False  # the last round is committed and evaluated
    settled: bool = False  # and all is paid
    open_ms: int = 0  # how long the next round is open
    counted: int = 0  # samples of the last table
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    refused_of: dict[str, dict[str, int]] = field(default_factory=dict)  # by peer and reason, of those refused last
    monitor: str | None = None  # its address, as a URL
    operators: dict[str, object] = field(default_factory=dict)  # where there are several: role, term, writer, heard
    audits: dict[str, int] = field(default_factory=dict)  # where there are audits: see ``aggregator.audits.audits.Audits.status``


def quality_in_words(quality: QualityReport) -> str:
    """Return a report's figures in one line: in percent, or pixels of disparity."""

    def shown(value: float) -> str:
        return f"{value:.1%}" if quality["metric"] == "accuracy" else f"{value:.2f}px"

    spread = f"{shown(min(quality['random']))} to {shown(max(quality['random']))}"
    constant = "" if quality["baseline"] is None else f" constant={shown(quality['baseline'])}"
    return f"{quality['metric']}: largest={shown(quality['largest'])} smallest={shown(quality['smallest'])} random={spread}{constant}"
