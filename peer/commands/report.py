"""What ``manta-peer status`` prints: where the peer of a directory stands, and why it is in its cohort."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from manta_swarm.network.peer_status import FETCHING, SEEKING, STARTING, STATUS_FILE, PeerStatus
from manta_swarm.peer.control import look
from manta_swarm.peer.limits.limits import listed
from manta_swarm.peer.status import fault_line, pending_words, unproven_words
from manta_swarm.protocol.errors import RemoteFault, StorageError, Unreachable, UserError

_DOES = {SEEKING: "looks for its run", FETCHING: "gets its run's data", STARTING: "gets ready to train"}  # before it takes part
_LOOK_S = 2.0  # for the peer to answer


def lines_of(directory: Path) -> list[str]:
    """Return the lines for the peer of ``directory``: as it says now, or else as it wrote last.

    Raises:
        UserError: no peer ever ran there, or its file cannot be read; the message says what to do.
    """
    try:
        return list(_lines(look(directory, _LOOK_S), is_there=True))
    except (UserError, Unreachable, RemoteFault):  # none runs, or it does not answer
        status = _kept(directory)
        return list(_lines(status, is_there=_is_running(status.pid)))


def _kept(directory: Path) -> PeerStatus:
    """Return the status that the peer of ``directory`` kept, the running one or the last.

    Raises:
        UserError: no peer ever ran there, or its file cannot be read; the message says what to do.
    """
    try:
        status = PeerStatus.read(directory)
    except StorageError as error:
        raise UserError(str(error)) from error
    except RemoteFault as error:
        raise UserError(f"{directory / STATUS_FILE} is no peer's status: the next manta-peer join writes it anew") from error
    if status is None:
        raise UserError(f"no peer ever ran in {directory}: name its folder with --dir, or start one with manta-peer join")
    return status


def _lines(status: PeerStatus, *, is_there: bool) -> Iterator[str]:
    """Yield the lines that a status is, of a peer that is there, or was."""
    is_light = status.gateway is not None
    if is_there and not (status.run or is_light):
        limits = listed(status.limits) or "no limits"
        paused = f"; nothing is computed now: {'; '.join(status.pauses.values())}" if status.pauses else ""
        yield f"a peer runs, and {_DOES[status.stage]}; {limits}{paused}"
        return
    paused = f"paused ({'; '.join(status.pauses.values())})" if status.pauses else "paused"
    runs = not status.finished and is_there
    state = "finished" if status.finished else "not running" if not runs else paused if status.paused else status.stage
    yield from (_lines_of_light if is_light else _lines_of_full)(status, state, runs=runs)


def _lines_of_full(status: PeerStatus, state: str, *, runs: bool) -> Iterator[str]:
    yield f"peer {status.peer} in run {status.name} ({status.run[:16]}): {state}, round {status.round} of {status.num_rounds}"
    yield f"counted: {status.samples_counted} samples in {status.rounds_counted} rounds; about {status.members} peers in the run"
    if status.verdict:
        yield status.verdict
    yield from _lines_of_credit(status)
    if status.limits:
        yield f"limits: {listed(status.limits)}"
    yield f"cohort {status.cohort}" + (f": {status.why}" if status.why else "")
    if status.links:
        yield f"cohort peers: {status.links}"
    if status.size:
        yield f"size {status.size}"
    if status.measured_for_others:
        yield f"measured {status.measured_for_others} networks for others"
    if status.audited:
        brought = f"{status.brought_bytes / 1e6:,.1f} MB of what it rests on were brought"
        yield f"audits asked about {status.audited} of its contributions; {brought}"
    if status.audits:
        yield f"audited {status.audits} contributions of others; {status.audits_against} were not what they say"
    if status.leases_at:
        yield f"leases microbatches to light contributors at {status.leases_at}"
    if status.near:
        yield f"near you: {status.near}; if you trust them, give all the same --cohort NAME and MANTA_COHORT_TOKEN"
    if status.operator:
        yield f"talks to operator {status.operator}"
    if status.round_trips and runs:
        yield f"round trips: {status.round_trips}"
    if status.reach and runs:  # nobody can call one that does not run
        yield f"reach: {status.reach}"
    if status.own_largest is not None and status.own_smallest is not None:
        figures = f"largest subnet {status.own_largest:.1%}, smallest {status.own_smallest:.1%}"
        yield f"on {status.own_samples} held-out images of your own, after round {status.own_round}: {figures}"
    if status.epsilon is not None and status.delta is not None:
        yield f"given away of your images: epsilon={status.epsilon:.4g} at delta={status.delta:g} so far"
    if status.waiting_for:
        yield f"waiting for {status.waiting_for}"


def _lines_of_credit(status: PeerStatus) -> Iterator[str]:
    """Say what was earned, and who vouches for it."""
    if status.credit is None:
        return
    if status.credit_checked == status.credit:
        voucher = "checked: computed here from the claims in the log"
    elif status.credit_checked:
        voucher = (
            f"as the log says; {status.credit_checked:,} of it checked: computed here from the claims of {status.credit_rounds} rounds"
        )
    else:
        voucher = "as the log says; none of it checked here"
    private = "; the data are private: nobody else can compute microbatches of them again" if status.is_private else ""
    yield f"credit: {status.credit:,} up to round {status.credit_round} ({voucher}{private})"
    if status.credit_pending:
        words = pending_words(status.credit_until, status.num_rounds)
        yield f"of it paid {status.credit_paid:,}, pending {status.credit_pending:,} ({words}), as the log says"
    for fault in status.credit_faults:
        yield f"{fault_line(fault)} (as the log says: its verdicts are entries of it)"
    if status.account:
        yield f"what it earns now adds up to account {status.account}"
    if status.is_proven is False:
        yield f"{unproven_words(status.good, status.proven_after)} (as the log says)"
    if status.earned_round:
        yield f"round {status.earned_round} paid {status.earned:,} of it ({'checked' if status.earned_checked else 'as the log says'})"
    if status.credit_fault:
        yield f"credit is in doubt: {status.credit_fault}"


def _lines_of_light(status: PeerStatus, state: str, *, runs: bool) -> Iterator[str]:
    run = f"run {status.name} ({status.run[:16]})" if status.run else "no run yet"
    yield f"light contributor {status.peer} in {run}: {state}, round {status.round} of {status.num_rounds}"
    yield f"the log has {status.samples_counted} samples of {status.taken} leases; {status.lost} came to nothing"
    yield from _lines_of_credit(status)
    if status.limits:
        yield f"limits: {listed(status.limits)}"
    if status.gateway:
        yield f"leases from {status.gateway}"
    if status.waiting_for:
        yield f"waiting for {status.waiting_for}"


def is_running(directory: Path) -> bool:
    """Return whether a peer runs on a directory, as far as its status file says."""
    try:
        return _is_running(_kept(directory).pid)
    except UserError:
        return False


def _is_running(pid: int) -> bool:
    """Return whether that process is there, and is no other one that got its number since."""
    if pid == os.getpid():
        return False
    try:
        return any("manta-peer" in word or "manta_swarm.peer.cli" in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
