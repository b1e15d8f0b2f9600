"""What a run's audits come to at a moment, for whoever looks on: DIR/monitor/trust.json, replaced after each commit. Light: pages read it.

It is the aggregator's word for what follows from the log: who has a copy of that computes the same (``manta-aggregator credits``).
A disk that refuses it stops nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from aggregator.attendants.live import DIRECTORY, Key
from aggregator.written import read_written
from protocol.accounts import Account
from protocol.errors import StorageError, UserError
from protocol.horizon import Horizon
from protocol.ledger import Ledger
from protocol.standing import Due, Standing
from protocol.trust import Vote
from swarm.disk import make_directory, replace_file

FILE = "trust.json"
MAX_KEYS, MAX_IN_DOUBT, MAX_FAULTS = 4096, 64, 8
_MAX_BYTES = 8 * 1024 * 1024

logger = logging.getLogger("manta.audits")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FaultSeen(_Part):
    """What was taken back of one key's credit, and why; also of one that had nothing."""

    round: int  # with whose entry
    reason: str
    claim: str = Field(pattern=r"^[0-9a-f]{64}$")  # digest
    amount: int


class KeyTrust(_Part):
    """One key."""

    key: Key
    is_proven: bool
    is_guilty: bool
    samples: int  # that audits found good since its last fault
    final: int
    pending: int
    until: int  # the round with which the last of what is pending is final, of that which becomes so within the run; 0: nothing does
    stays: int = 0  # of what is pending, that stays so: the run ends before it is final
    void: int
    faults: tuple[FaultSeen, ...]  # the newest
    credits: dict[Key, int]  # final and pending, by account


class VoteSeen(_Part):
    """One auditor's answer."""

    auditor: Key
    outcome: str
    round: int  # with whose entry it took effect
    is_named: bool


class Doubt(_Part):
    """A claim that somebody spoke against, and of which nothing is decided yet."""

    claim: Key
    key: Key
    round: int  # of its table
    check: str
    lot: int
    votes: tuple[VoteSeen, ...]


class Done(_Part):
    """What this aggregator's auditor did since its start."""

    claims: int = 0
    lots: int = 0
    against: int = 0
    withheld: int = 0
    missed: int = 0
    cpu_ms: int = 0
    claimed_ms: int = 0  # what the claims of the rounds since then say that their lots took


class Trust(_Part):
    """All of the file."""

    format: Literal["manta/trust/v1"] = "manta/trust/v1"
    round: int
    num_keys: int
    num_proven: int
    num_guilty: int
    keys: tuple[KeyTrust, ...] = Field(max_length=MAX_KEYS)  # with faults first, then by credit
    due: int  # questions that are open
    in_doubt: tuple[Doubt, ...] = Field(max_length=MAX_IN_DOUBT)
    done: Done


class TrustFile:
    """Writes it."""

    def __init__(self, directory: Path) -> None:
        """Write into the run's ``directory``."""
        self._path = directory / DIRECTORY / FILE
        self._counted = 0  # the newest round whose claims are in ``_claimed_ms``
        self._claimed_ms = 0
        self._is_failing = False

    async def tell(self, ledger: Ledger, due: Sequence[Due], done: dict[str, int]) -> None:
        """Write what holds now: what is ``due`` after the newest round, and what was done since the start, by the names of ``Done``."""
        for round_ in range(self._counted + 1 if self._counted else ledger.round, ledger.round + 1):
            table = ledger.table_at(round_) or ()
            self._claimed_ms += sum(lots.count * ms for one in table for lots, ms in zip(one.lots, one.lots_ms, strict=True))
        self._counted = ledger.round
        trust = trust_of(ledger.standing, due, ledger.round, Done(**done, claimed_ms=self._claimed_ms))
        failure = await asyncio.to_thread(self._write, trust)
        if failure is not None and not self._is_failing:
            logger.warning("not written path=%s reason=%s", self._path, failure)
        self._is_failing = failure is not None

    def _write(self, trust: Trust) -> str | None:
        try:
            if not self._path.parent.exists():
                make_directory(self._path.parent)
            replace_file(self._path, trust.model_dump_json().encode())
        except (StorageError, UserError) as error:
            return str(error)
        return None


def trust_of(standing: Standing, due: Sequence[Due], round_: int, done: Done) -> Trust:
    """Return what is written of a run's standing, and of what is ``due``, after ``round_``."""
    keys = {*standing.accounts.keys(), *standing.samples, *standing.guilty, *standing.named}
    accounts = {key: standing.account(key) for key in keys}
    shown = sorted(keys, key=lambda key: (not accounts[key].void, -accounts[key].credit, key))[:MAX_KEYS]
    credits_ = {key: dict[str, int]() for key in shown}
    for account, of_keys in standing.accounts.by_account().items():
        for key, amount in of_keys.items():
            if key in credits_:
                credits_[key][account.hex()] = amount
    return Trust(
        round=round_,
        num_keys=len(keys),
        num_proven=sum(map(standing.is_proven, keys)),
        num_guilty=len(standing.guilty),
        keys=tuple(_key_trust(standing, key, accounts[key], credits_[key]) for key in shown),
        due=len(due),
        in_doubt=tuple(map(_doubt, [one for one in due if one.is_accused][:MAX_IN_DOUBT])),
        done=done,
    )


def read_trust(directory: Path) -> Trust:
    """Return what is written in a run's directory.

    Raises:
        FileNotFoundError: nothing is.
        OSError: it cannot be read.
        ValueError: it is damaged, or of another version.
    """
    return read_written(directory / DIRECTORY / FILE, Trust, _MAX_BYTES)


def _key_trust(standing: Standing, key: bytes, account: Account, credits_: dict[str, int]) -> KeyTrust:
    outlook = Horizon.of(standing.manifest).outlook(account.pending)
    return KeyTrust(
        key=key.hex(),
        is_proven=standing.is_proven(key),
        is_guilty=key in standing.guilty,
        samples=standing.samples[key],
        final=account.final,
        pending=account.credit - account.final,
        until=outlook.until,
        stays=outlook.stays,
        void=sum(each.amount for each in account.void),
        faults=tuple(
            FaultSeen(round=each.fault.round, reason=each.fault.reason, claim=each.fault.claim.hex(), amount=each.amount)
            for each in account.void[-MAX_FAULTS:]
        ),
        credits=credits_,
    )


def _doubt(one: Due) -> Doubt:
    claimed, question = one.claimed, one.question
    return Doubt(
        claim=claimed.digest.hex(),
        key=claimed.key.hex(),
        round=claimed.round,
        check=question.check,
        lot=question.lot,
        votes=_votes(one.votes),
    )


def _votes(votes: Sequence[Vote]) -> tuple[VoteSeen, ...]:
    return tuple(VoteSeen(auditor=vote.auditor.hex(), outcome=vote.outcome, round=vote.round, is_named=vote.is_named) for vote in votes)
