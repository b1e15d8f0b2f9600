"""What ``manta-peer credits`` reads of folders: what each run paid, round by round, by payout receipts, and what these prove.

Reads only, and asks nobody: it may be used while the peer runs, and of a copy of the folder.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.network.log_client import MAX_RECEIPT_BYTES, CreditWord
from manta_swarm.peer.credit.payout_receipts import MANIFEST, KeptCredit, load_manifest, load_payout_receipt
from manta_swarm.peer.store import PAYOUT_RECEIPTS, RUNS, credit_file, newest_file
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import EncodingError, LedgerError, MantaError, RemoteFault, StorageError, UserError
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.payout_receipts import PayoutReceipt, ProvenPayoutReceipt, check_one_log, prove
from manta_swarm.protocol.receipts import open_round_receipt
from manta_swarm.protocol.records import Header, Receipt, open_entry
from manta_swarm.protocol.reputation import FALSE, Fault, paid_with
from manta_swarm.protocol.verdicts import AuditRules
from manta_swarm.runtime.round_folder import RoundFolder

CLAIMS, WORD, UNKNOWN = "claims", "word", "unknown"  # an amount is known by the table's claims, by the log's word alone, not at all
_KNOWN = (UNKNOWN, WORD, CLAIMS)  # the better known the later
PAID, PENDING, LOST = "paid", "pending", "lost"


@dataclass(frozen=True, slots=True)
class RoundEarnings:
    """What one round paid."""

    round: int
    key: bytes
    account: bytes  # that its claim names: what the round paid for that adds up to it
    amount: int | None  # where contributions are audited: what the round would pay if nothing more were found
    by: str  # CLAIMS, WORD or UNKNOWN
    state: str  # PAID, PENDING or LOST
    reason: str  # why it is not paid
    paid_with: int | None  # the round with which it is paid; None: it is with the run's settlement
    payout_receipt: ProvenPayoutReceipt | None  # None: it was not looked at whether it holds


@dataclass(slots=True)
class RunEarned:
    """What one run paid."""

    folder: Path
    run: str = ""
    name: str = ""
    round: int = 0  # the newest whose commit is proven here
    num_rounds: int = 0
    rules: AuditRules | None = None  # of its audits; None: it has none
    is_private: bool = False
    rounds: list[RoundEarnings] = field(default_factory=list)
    word: CreditWord | None = None  # the log's, the newest that was kept
    problems: list[str] = field(default_factory=list)

    def total(self, state: str) -> int:
        """Return what the rounds of a state paid."""
        return total(self.rounds, state)


@dataclass(slots=True)
class AccountEarned:
    """What one run paid for the claims that name one account, by the payout receipts of several peers."""

    run: str
    name: str
    rounds: dict[tuple[bytes, int], RoundEarnings] = field(default_factory=dict)  # by key and round
    proven: list[ProvenPayoutReceipt] = field(default_factory=list)  # also of claims that name other accounts
    problems: list[str] = field(default_factory=list)

    def take(self, run: RunEarned, directory: Path, account: bytes) -> None:
        """Take the payout receipts of a folder; of two of one key and round the one that knows more."""
        self.problems += [f"{directory}: {problem}" for problem in run.problems]
        self.proven += [one.payout_receipt for one in run.rounds if one.payout_receipt is not None]
        for one in run.rounds:
            before = self.rounds.get((one.key, one.round))
            if one.account == account and (before is None or _KNOWN.index(one.by) > _KNOWN.index(before.by)):
                self.rounds[one.key, one.round] = one

    def of_key(self, key: bytes) -> list[RoundEarnings]:
        """Return what ``key`` earned."""
        return [one for (of, _), one in sorted(self.rounds.items()) if of == key]

    @property
    def keys(self) -> list[bytes]:
        """The keys that earned something, in order."""
        return sorted({key for key, _ in self.rounds})


def total(rounds: Iterable[RoundEarnings], state: str) -> int:
    """Return what the rounds of a state paid."""
    return sum(one.amount or 0 for one in rounds if one.state == state)


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
    return [_run_of(folder, folder / PAYOUT_RECEIPTS, verify=verify) for folder in folders if (folder / PAYOUT_RECEIPTS).is_dir()]


def account_runs_of(directories: Sequence[Path], account: bytes) -> list[AccountEarned]:
    """Return what each run paid for claims that name ``account``, by all payout receipts in these folders; each receipt is checked.

    Args:
        directories: folders of peers, or of the payout receipts of one run; of two copies of one payout receipt one counts.
        account: the payout account.

    Raises:
        UserError: one of them is no such folder, or cannot be read.
    """
    by_run = dict[str, AccountEarned]()
    for directory in directories:
        is_of_payout_receipts = (directory / MANIFEST).is_file()
        found = [_run_of(directory.parent, directory, verify=True)] if is_of_payout_receipts else runs_of(directory, verify=True)
        for run in found:
            by_run.setdefault(run.run, AccountEarned(run.run, run.name)).take(run, directory, account)
    for of_run in by_run.values():
        try:
            check_one_log(of_run.proven)
        except LedgerError as error:
            of_run.problems.append(str(error))
    return [by_run[run] for run in sorted(by_run)]


def _run_of(folder: Path, payout_receipts_folder: Path, *, verify: bool) -> RunEarned:
    found = RunEarned(folder)
    try:
        signed = load_manifest(payout_receipts_folder)
        manifest = signed.open()
        training_spec = ManifestTrainingSpec(manifest)
        if folder.parent.name == RUNS and signed.run.hex()[:16] != folder.name:
            raise LedgerError("it is of another run")
    except (MantaError, ValueError) as error:
        found.problems.append(f"{payout_receipts_folder}: the run's manifest cannot be used ({error}): nothing there can be checked")
        return found
    found.run, found.name, found.is_private = signed.run.hex(), manifest.name, manifest.is_private
    found.num_rounds, found.rules = manifest.num_rounds, manifest.audit_rules
    has_more = payout_receipts_folder.name == PAYOUT_RECEIPTS  # else nothing says that what lies beside it is of the same peer
    found.word = _word_of(folder, found.problems) if has_more else None
    payout_receipts, proven = dict[int, PayoutReceipt](), dict[int, ProvenPayoutReceipt]()
    for round_, payout_receipt in _payout_receipts_of(payout_receipts_folder, found.problems):
        if verify:
            try:
                proven[round_] = one = prove(payout_receipt, manifest, signed.run, training_spec)
                if one.round.round != round_:
                    raise LedgerError(f"it is of round {one.round.round}")
            except RemoteFault as error:
                found.problems.append(f"round {round_}: its payout receipt proves nothing: {error}")
                proven.pop(round_, None)
                continue
        payout_receipts[round_] = payout_receipt
    found.round = max(_newest_of(folder, signed, manifest, found.problems) if has_more else 0, *payout_receipts, 0)
    for round_, payout_receipt in payout_receipts.items():
        try:
            found.rounds.append(_earned(found, round_, payout_receipt, proven.get(round_)))
        except RemoteFault as error:
            found.problems.append(f"round {round_}: its claim is none: {error}")
    if verify:
        _check(found, list(proven.values()))
    return found


def _earned(found: RunEarned, round_: int, payout_receipt: PayoutReceipt, proven: ProvenPayoutReceipt | None) -> RoundEarnings:
    """Return what a round paid, and what became of it as far as it is known here.

    Raises:
        RemoteFault: the claim of the payout receipt is none.
    """
    opened, contribution = payout_receipt.claim.open(), _contribution_of(payout_receipt)
    key, account, until = opened.key, opened.payout, paid_with(found.rules, found.num_rounds, round_)
    faults = () if found.word is None else found.word.faults
    own = next((fault for fault in faults if fault.contribution == contribution), None)
    fault = own or next((fault for fault in faults if _takes(fault, round_, until)), None)
    if fault is not None:
        state, reason = LOST, f"found {fault.reason} with round {fault.round}, as the log says"
        if own is None:
            reason = f"another contribution of this key was {reason}: this one is paid only if an audit finds it good"
    elif until is None:
        state, reason = PENDING, "paid when the run is settled, after its last round, unless audits find something"
    elif until > found.round:
        state, reason = PENDING, f"paid with round {until}: {until - found.round} rounds are not over"
    else:
        state, reason = PAID, ""
    by = CLAIMS if payout_receipt.claims else WORD if payout_receipt.paid else UNKNOWN
    return RoundEarnings(round_, key, account, payout_receipt.paid[0] if payout_receipt.paid else None, by, state, reason, until, proven)


def _contribution_of(payout_receipt: PayoutReceipt) -> bytes:
    """Return the digest of the contribution that has a payout receipt's claim.

    Raises:
        RemoteFault: it shows none.
    """
    header = open_entry(payout_receipt.listing.contribution.entry)
    if not isinstance(header, Header):
        raise EncodingError("no contribution")
    return header.contribution.digest


def _takes(fault: Fault, round_: int, until: int | None) -> bool:
    """Return whether what a round would pay is lost with a fault in another contribution: what was pending then, and all after guilt."""
    return (until is None or until >= fault.round) if round_ <= fault.round else fault.reason == FALSE


def _check(found: RunEarned, proven: list[ProvenPayoutReceipt]) -> None:
    """Check what no payout receipt shows alone."""
    try:
        check_one_log(proven)
    except LedgerError as error:
        found.problems.append(str(error))
    word = found.word
    if word is None:
        return
    shown = sum(one.amount or 0 for one in found.rounds if one.by == CLAIMS and one.round <= word.round)
    if shown > word.credit:
        said = f"{word.credit:,} up to round {word.round}"
        found.problems.append(f"the log says that this peer earned {said}, and its claims prove {shown:,}")


def _payout_receipts_of(folder: Path, problems: list[str]) -> Iterator[tuple[int, PayoutReceipt]]:
    try:
        rounds = RoundFolder(folder).rounds()
    except StorageError as error:
        problems.append(str(error))
        return
    for round_ in rounds:
        try:
            yield round_, load_payout_receipt(folder, round_)
        except RemoteFault as error:
            problems.append(
                f"round {round_}: its payout receipt is damaged ({error}) and counts for nothing here; the log still has the round"
            )
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # else the peer made room a moment ago
                problems.append(str(error))


def _word_of(folder: Path, problems: list[str]) -> CreditWord | None:
    try:
        kept = credit_file(folder).load(KeptCredit)
    except StorageError as error:
        problems.append(str(error))
        return None
    return kept.word[0] if kept is not None and kept.word else None


def _newest_of(folder: Path, signed: SignedManifest, manifest: Manifest, problems: list[str]) -> int:
    """Return the newest round whose commit is kept; 0: none is."""
    try:
        if (data := newest_file(folder).read()) is None:
            return 0
        receipt = unpack(Receipt, data, max_bytes=MAX_RECEIPT_BYTES)
        return open_round_receipt(receipt, Operators.of(manifest, signed.run)).round.round
    except (StorageError, RemoteFault) as error:
        problems.append(f"{newest_file(folder).path} is damaged ({error}): how far the run is follows from the payout receipts alone")
        return 0
