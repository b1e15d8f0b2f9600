"""What ``manta-peer credits`` reads of folders: what each run paid their peers, round by round, by their pay slips, and what these prove.

Reads only, and asks nobody: it may be used while the peer runs, and of a copy of the folder.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from automl.training.asked import AskedCourse
from peer.rounds.credit_file import read_credit
from peer.rounds.slips import MANIFEST, load_manifest, load_slip, rounds_in
from peer.store import CREDIT, NEWEST, RUNS, SLIPS
from protocol.accounts import Fault
from protocol.audits import WITHHELD
from protocol.encoding import unpack
from protocol.errors import LedgerError, MantaError, RemoteFault, StorageError, UserError
from protocol.horizon import Horizon, Outlook
from protocol.manifest import Manifest, SignedManifest
from protocol.operators import Operators
from protocol.receipts import open_round_receipt
from protocol.records import Receipt
from protocol.slips import ProvenSlip, Slip, check_one_log, prove
from protocol.standing import LEFT
from swarm.messages import MAX_RECEIPT_BYTES, CreditWord

CLAIMS, WORD, UNKNOWN = "claims", "word", "unknown"  # an amount is known by the table's claims, by the log's word alone, not at all
_KNOWN = (UNKNOWN, WORD, CLAIMS)  # the better known the later
FINAL, PENDING, VOID = "final", "pending", "void"


@dataclass(frozen=True, slots=True)
class Earned:
    """What one round paid."""

    round: int
    key: bytes
    account: bytes  # that its claim names: what the round paid for that adds up to it
    paid: int | None
    by: str  # CLAIMS, WORD or UNKNOWN
    state: str  # FINAL, PENDING or VOID
    reason: str  # why it is not final
    slip: ProvenSlip | None  # None: it was not looked at whether it holds


@dataclass(slots=True)
class RunEarned:
    """What one run paid."""

    folder: Path
    run: str = ""
    name: str = ""
    round: int = 0  # the newest whose commit is proven here
    horizon: Horizon = field(default_factory=lambda: Horizon(0, 0))  # up to where what is earned becomes final
    is_unaudited: bool = False
    rounds: list[Earned] = field(default_factory=list)
    word: CreditWord | None = None  # the log's, the newest that was kept
    problems: list[str] = field(default_factory=list)

    def total(self, state: str) -> int:
        """Return what the rounds of a state paid."""
        return total(self.rounds, state)

    @property
    def outlook(self) -> Outlook:
        """What becomes of what is pending of these rounds."""
        return self.horizon.outlook((one.round, one.paid or 0) for one in self.rounds if one.state == PENDING)


@dataclass(slots=True)
class AccountEarned:
    """What one run paid for the claims that name one account, by the slips of several peers."""

    run: str
    name: str
    horizon: Horizon
    rounds: dict[tuple[bytes, int], Earned] = field(default_factory=dict)  # by key and round
    proven: list[ProvenSlip] = field(default_factory=list)  # also of claims that name other accounts
    problems: list[str] = field(default_factory=list)

    def take(self, run: RunEarned, directory: Path, account: bytes) -> None:
        """Take the slips of a folder; of two of one key and round the one that knows more."""
        self.problems += [f"{directory}: {problem}" for problem in run.problems]
        self.proven += [one.slip for one in run.rounds if one.slip is not None]
        for one in run.rounds:
            before = self.rounds.get((one.key, one.round))
            if one.account == account and (before is None or _KNOWN.index(one.by) > _KNOWN.index(before.by)):
                self.rounds[one.key, one.round] = one

    def of_key(self, key: bytes) -> list[Earned]:
        """Return what ``key`` earned."""
        return [one for (of, _), one in sorted(self.rounds.items()) if of == key]

    @property
    def keys(self) -> list[bytes]:
        """Those that earned something, in order."""
        return sorted({key for key, _ in self.rounds})

    def stays(self, rounds: Iterable[Earned]) -> int:
        """Return what of these rounds stays pending, since the run ends before it is final."""
        return self.horizon.outlook((one.round, one.paid or 0) for one in rounds if one.state == PENDING).stays


def total(rounds: Iterable[Earned], state: str) -> int:
    """Return what the rounds of a state paid."""
    return sum(one.paid or 0 for one in rounds if one.state == state)


def runs_of(directory: Path, *, verify: bool) -> list[RunEarned]:
    """Return what each run paid the peer of ``directory``, in the order of their folders' names.

    With ``verify`` each signature and proof is checked; what does not hold, and what is damaged, is in ``problems``.

    Raises:
        UserError: no peer ever ran there, or the folder cannot be read.
    """
    if not directory.is_dir():
        raise UserError(f"no peer ever ran in {directory}: name its folder with --dir, or start one with manta-peer join")
    try:
        folders = sorted(path for path in (directory / RUNS).iterdir() if path.is_dir()) if (directory / RUNS).exists() else []
    except OSError as error:
        raise UserError(f"cannot read {directory / RUNS}: {error.strerror}") from error
    return [_run_of(folder, folder / SLIPS, verify=verify) for folder in folders if (folder / SLIPS).is_dir()]


def account_runs_of(directories: Sequence[Path], account: bytes) -> list[AccountEarned]:
    """Return what each run paid for claims that name ``account``, by all slips in these folders; every slip there is checked.

    Args:
        directories: folders of peers, or of the slips of one run; of two copies of one slip one counts.
        account: the payout account.

    Raises:
        UserError: one of them is no such folder, or cannot be read.
    """
    by_run = dict[str, AccountEarned]()
    for directory in directories:
        is_of_slips = (directory / MANIFEST).is_file()
        found = [_run_of(directory.parent, directory, verify=True)] if is_of_slips else runs_of(directory, verify=True)
        for run in found:
            by_run.setdefault(run.run, AccountEarned(run.run, run.name, run.horizon)).take(run, directory, account)
    for of_run in by_run.values():
        try:
            check_one_log(of_run.proven)
        except LedgerError as error:
            of_run.problems.append(str(error))
    return [by_run[run] for run in sorted(by_run)]


def _run_of(folder: Path, slips_folder: Path, *, verify: bool) -> RunEarned:
    found = RunEarned(folder)
    try:
        signed = load_manifest(slips_folder)
        manifest = signed.open()
        course = AskedCourse(manifest)
        if folder.parent.name == RUNS and signed.run.hex()[:16] != folder.name:
            raise LedgerError("it is of another run")
    except (MantaError, ValueError) as error:
        found.problems.append(f"{slips_folder}: the run's manifest cannot be used ({error}): nothing there can be checked")
        return found
    found.run, found.name, found.is_unaudited = signed.run.hex(), manifest.name, manifest.is_private
    found.horizon = Horizon.of(manifest)
    has_more = slips_folder.name == SLIPS  # else nothing says that what lies beside it is of the same peer
    found.word = _word_of(folder, found.problems) if has_more else None
    slips, proven = dict[int, Slip](), dict[int, ProvenSlip]()
    for round_, slip in _slips_of(slips_folder, found.problems):
        if verify:
            try:
                proven[round_] = one = prove(slip, manifest, signed.run, course)
                if one.round.round != round_:
                    raise LedgerError(f"it is of round {one.round.round}")
            except RemoteFault as error:
                found.problems.append(f"round {round_}: its slip proves nothing: {error}")
                proven.pop(round_, None)
                continue
        slips[round_] = slip
    found.round = max(_newest_of(folder, signed, manifest, found.problems) if has_more else 0, *slips, 0)
    for round_, slip in slips.items():
        try:
            found.rounds.append(_earned(found, round_, slip, proven.get(round_)))
        except RemoteFault as error:
            found.problems.append(f"round {round_}: its claim is none: {error}")
    if verify:
        _check(found, list(proven.values()))
    return found


def _earned(found: RunEarned, round_: int, slip: Slip, proven: ProvenSlip | None) -> Earned:
    """Return what a round paid, and what became of it as far as it is known here.

    Raises:
        RemoteFault: the claim of the slip is none.
    """
    opened = slip.claim.open()
    key, account = opened.key, opened.payout
    claim, pending_rounds = slip.claim.digest, found.horizon.pending_rounds
    fault = next((fault for fault in _faults(found.word) if _takes(fault, round_, claim, pending_rounds)), None)
    if fault is not None:
        state, reason = VOID, f"{fault.reason}, verdict of round {fault.round}, as the log says"
    elif (until := found.horizon.final_with(round_)) is None:
        state, reason = PENDING, f"stays so: the run ends with round {found.horizon.num_rounds}"
    elif until > found.round:
        state, reason = PENDING, f"final with round {until}: {until - found.round} rounds are not over"
    else:
        state, reason = FINAL, ""
    by = CLAIMS if slip.claims else WORD if slip.paid else UNKNOWN
    return Earned(round_, key, account, slip.paid[0] if slip.paid else None, by, state, reason, proven)


def _faults(word: CreditWord | None) -> tuple[Fault, ...]:
    return () if word is None else tuple(each.fault for each in word.faults)


def _takes(fault: Fault, round_: int, claim: bytes, pending_rounds: int) -> bool:
    """Return whether a fault makes void what a round paid for ``claim``: what was pending then, and after guilt all that came."""
    if fault.reason == LEFT:
        return fault.claim == claim
    return fault.round - pending_rounds <= round_ and (round_ < fault.round or fault.reason != WITHHELD)


def _check(found: RunEarned, proven: list[ProvenSlip]) -> None:
    """Check what no slip shows alone."""
    try:
        check_one_log(proven)
    except LedgerError as error:
        found.problems.append(str(error))
    word = found.word
    if word is None:
        return
    shown = sum(one.paid or 0 for one in found.rounds if one.by == CLAIMS and one.round <= word.round)
    if shown > word.credit + word.void:
        said = f"{word.credit + word.void:,} up to round {word.round}, void included"
        found.problems.append(f"the log says that this peer earned {said}, and its claims prove {shown:,}")


def _slips_of(folder: Path, problems: list[str]) -> Iterator[tuple[int, Slip]]:
    try:
        rounds = rounds_in(folder)
    except StorageError as error:
        problems.append(str(error))
        return
    for round_ in rounds:
        try:
            yield round_, load_slip(folder, round_)
        except RemoteFault as error:
            problems.append(f"round {round_}: its slip is damaged ({error}) and counts for nothing here; the log still has the round")
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # else the peer made room a moment ago
                problems.append(str(error))


def _word_of(folder: Path, problems: list[str]) -> CreditWord | None:
    try:
        kept = read_credit((folder / CREDIT).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, RemoteFault) as error:
        problems.append(f"{folder / CREDIT} is damaged ({error}): what the log said is not known here; the next manta-peer join asks again")
        return None
    return kept.word[0] if kept.word else None


def _newest_of(folder: Path, signed: SignedManifest, manifest: Manifest, problems: list[str]) -> int:
    """Return the newest round whose commit is kept; 0: none is."""
    try:
        data = (folder / NEWEST).read_bytes()
        receipt = unpack(Receipt, data, max_bytes=MAX_RECEIPT_BYTES)
        return open_round_receipt(receipt, Operators.of(manifest, signed.run)).round.round
    except FileNotFoundError:
        return 0
    except (OSError, RemoteFault) as error:
        problems.append(f"{folder / NEWEST} is damaged ({error}): how far the run is follows from the slips alone")
        return 0
