"""What ``manta-peer status`` prints: where the peer of a directory stands, and why it is in its cohort, from its status file."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from peer.faults import fault_line, pending_words, unproven_words
from peer.limits.limits import listed
from protocol.errors import UserError

_FILE = "status.json"
_MAX_BYTES = 1024 * 1024


class _Fault(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    round: int
    reason: str
    contribution: str


class _Shown(BaseModel):
    """What is shown of the file; a file of another version may lack some of it, or have more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    peer: str
    run: str
    name: str
    cohort: str
    pid: int
    num_rounds: int
    round: int = 0
    phase: str = ""
    finished: bool = False
    paused: bool = False
    pauses: dict[str, str] = {}
    limits: dict[str, str] = {}
    waiting_for: str = ""
    members: int = 0
    why: str = ""
    size: str = ""
    near: str = ""
    round_trips: str = ""
    operator: str = ""
    reach: str = ""
    samples_counted: int = 0
    rounds_counted: int = 0
    credit: int | None = None
    credit_round: int = 0
    credit_paid: int = 0
    credit_pending: int = 0
    credit_until: int = 0
    credit_faults: list[_Fault] = []
    account: str = ""
    is_proven: bool | None = None
    good: int = 0
    proven_after: int = 0
    credit_checked: int = 0
    credit_rounds: int = 0
    credit_fault: str = ""
    verdict: str = ""
    is_unaudited: bool = False
    earned_round: int = 0
    earned: int = 0
    earned_checked: bool = False
    own_round: int | None = None
    own_samples: int = 0
    own_largest: float | None = None
    own_smallest: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    measured_for_others: int = 0
    audits: int = 0
    audits_against: int = 0
    audited: int = 0
    brought_bytes: int = 0
    leases_at: str = ""
    gateway: str | None = None  # of a light contributor: where it leases; empty: none has answered yet
    taken: int = 0
    lost: int = 0
    samples_taken: int = 0


def lines_of(directory: Path) -> list[str]:
    """Return the lines for the peer of ``directory``, the running one or the last.

    Raises:
        UserError: no peer ever ran there, or its file cannot be read; the message says what to do.
    """
    return list(_lines(_shown(directory)))


def _shown(directory: Path) -> _Shown:
    path = directory / _FILE
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
        return _Shown.model_validate_json(data)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"no peer ever ran in {directory}: name its folder with --dir, or start one with manta-peer join") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise UserError(f"{path} is no peer's status: the next manta-peer join writes it anew") from error


def _lines(shown: _Shown) -> Iterator[str]:
    paused = f"paused ({'; '.join(shown.pauses.values())})" if shown.pauses else "paused"
    state = "finished" if shown.finished else paused if shown.paused else shown.phase
    runs = not shown.finished and _is_running(shown.pid)
    state = state if shown.finished or runs else "not running"
    if shown.gateway is not None:
        yield from _lines_of_light(shown, state)
        return
    yield f"peer {shown.peer} in run {shown.name} ({shown.run[:16]}): {state}, round {shown.round} of {shown.num_rounds}"
    yield f"counted: {shown.samples_counted} samples in {shown.rounds_counted} rounds; about {shown.members} peers in the run"
    if shown.verdict:
        yield shown.verdict
    yield from _lines_of_credit(shown)
    if shown.limits:
        yield f"limits: {listed(shown.limits)}"
    yield f"cohort {shown.cohort}" + (f": {shown.why}" if shown.why else "")
    if shown.size:
        yield f"size {shown.size}"
    if shown.measured_for_others:
        yield f"measured {shown.measured_for_others} networks for others"
    if shown.audited:
        brought = f"{shown.brought_bytes / 1e6:,.1f} MB of what it rests on were brought"
        yield f"audits asked about {shown.audited} of its contributions; {brought}"
    if shown.audits:
        yield f"audited {shown.audits} contributions of others; {shown.audits_against} were not what they say"
    if shown.leases_at:
        yield f"leases lots to light contributors at {shown.leases_at}"
    if shown.near:
        yield f"near you: {shown.near}; if you trust them, give all the same --cohort NAME and MANTA_COHORT_TOKEN"
    if shown.operator:
        yield f"talks to operator {shown.operator}"
    if shown.round_trips and runs:
        yield f"round trips: {shown.round_trips}"
    if shown.reach and runs:  # nobody can call one that does not run
        yield f"reach: {shown.reach}"
    if shown.own_largest is not None and shown.own_smallest is not None:
        figures = f"largest subnet {shown.own_largest:.1%}, smallest {shown.own_smallest:.1%}"
        yield f"on {shown.own_samples} held-out images of your own, after round {shown.own_round}: {figures}"
    if shown.epsilon is not None and shown.delta is not None:
        yield f"given away of your images: epsilon={shown.epsilon:.4g} at delta={shown.delta:g} so far"
    if shown.waiting_for:
        yield f"waiting for {shown.waiting_for}"


def _lines_of_credit(shown: _Shown) -> Iterator[str]:
    """Say what was earned, and who vouches for it."""
    if shown.credit is None:
        return
    if shown.credit_checked == shown.credit:
        voucher = "checked: computed here from the claims in the log"
    elif shown.credit_checked:
        voucher = f"as the log says; {shown.credit_checked:,} of it checked: computed here from the claims of {shown.credit_rounds} rounds"
    else:
        voucher = "as the log says; none of it checked here"
    unaudited = ", unaudited: nobody else can compute lots of private data again" if shown.is_unaudited else ""
    yield f"credit: {shown.credit:,} up to round {shown.credit_round} ({voucher}{unaudited})"
    if shown.credit_pending:
        words = pending_words(shown.credit_until, shown.num_rounds)
        yield f"of it paid {shown.credit_paid:,}, pending {shown.credit_pending:,} ({words}), as the log says"
    for fault in shown.credit_faults:
        yield f"{fault_line(fault.model_dump())} (as the log says: its verdicts are entries of it)"
    if shown.account:
        yield f"what it earns now adds up to account {shown.account}"
    if shown.is_proven is False:
        yield f"{unproven_words(shown.good, shown.proven_after)} (as the log says)"
    if shown.earned_round:
        yield f"round {shown.earned_round} paid {shown.earned:,} of it ({'checked' if shown.earned_checked else 'as the log says'})"
    if shown.credit_fault:
        yield f"credit is in doubt: {shown.credit_fault}"


def _lines_of_light(shown: _Shown, state: str) -> Iterator[str]:
    run = f"run {shown.name} ({shown.run[:16]})" if shown.run else "no run yet"
    yield f"light contributor {shown.peer} in {run}: {state}, round {shown.round} of {shown.num_rounds}"
    yield f"the log has {shown.samples_taken} samples of {shown.taken} leases; {shown.lost} came to nothing"
    yield from _lines_of_credit(shown)
    if shown.limits:
        yield f"limits: {listed(shown.limits)}"
    if shown.gateway:
        yield f"leases from {shown.gateway}"
    if shown.waiting_for:
        yield f"waiting for a gateway: {shown.waiting_for}"


def is_running(directory: Path) -> bool:
    """Return whether a peer runs on a directory, as far as its status file says."""
    try:
        return _is_running(_shown(directory).pid)
    except UserError:
        return False


def _is_running(pid: int) -> bool:
    """Return whether that process is there, and is no other one that got its number since."""
    if pid == os.getpid():
        return False
    try:
        return any("manta-peer" in word or "peer.cli" in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
