"""Holds the log to what it signed: the newest commit that this peer knows has to be in it, also after it was away, also after a restart.

A log that shows less than it signed is an older copy of itself. This peer shows it its own signature, which stops it; says so once, keeps
the proof, and waits a while for the whole log. Nobody can follow a log that has two histories: the peer stops.
"""

import logging
from collections.abc import Iterable
from typing import NoReturn

from manta_swarm.network import timeouts
from manta_swarm.network.log_client import ProvenCommit
from manta_swarm.network.log_proofs import departure_from
from manta_swarm.network.operator_line import short
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import OtherHistory, RemoteFault, StorageError
from manta_swarm.protocol.histories import Departure, Histories, Shown, contradict
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.runtime.disk import write_durably

logger = logging.getLogger("manta.peer")


class ConsistencyChecker:
    """Keeps what one peer knows that the log of its run has signed, and holds the log to it."""

    def __init__(self, context: RunContext, progress: Progress) -> None:
        """Know what was kept at the last time; ``progress`` has the newest commits."""
        self._log = context.log
        self._signed = context.signed
        self._store = context.store
        self._live_status = context.live_status
        self._commits = progress.commits
        self._now_s = context.clock.now_s
        self._rolled_back_s: float | None = None  # since when the log shows less than it signed
        self._held = self._kept()
        self.proof: Histories | None = None  # that the log has two histories: anybody can check it

    def _kept(self) -> ProvenCommit | None:
        data = self._store.newest(self._signed.run).read()
        if data is None:
            return None
        try:
            return self._log.open(data)
        except RemoteFault as error:  # nothing follows from it but what the log is asked for
            logger.warning("the newest commit that was kept is damaged reason=%s", error)
            return None

    @property
    def newest(self) -> ProvenCommit | None:
        """The newest commit that this peer knows of, or knew of before it was started."""
        return self._held

    def remember(self, proven_commit: ProvenCommit) -> None:
        """Keep a commit, if it is the newest."""
        if self._held is not None and self._held.proven.tree_head.size >= proven_commit.proven.tree_head.size:
            return
        self._held = proven_commit
        try:
            self._store.newest(self._signed.run).write(pack(proven_commit.receipt))
        except StorageError as error:
            logger.error("newest commit not kept reason=%s", error)

    async def compare(self) -> bool:
        """Ask the log for its tree head; return whether it has all that this peer knows it to have signed.

        Raises:
            OtherHistory: it goes another way, or has not been whole for too long; the proof is kept.
            Unreachable: no answer.
            RemoteFault: what it answers is no tree head of this log.
        """
        held = self._held
        if held is None:
            return True
        found, shown = await departure_from(self._log, held)
        if found is None:
            if self._rolled_back_s is not None:
                self._rolled_back_s = None
                self._live_status.update(log_fault="")
                self._live_status.say("the run's log has again all that it signed")
            return True
        evidence = Histories.shown_after(self._signed, held.receipt, shown.tree_head, shown.consistency)
        if found is not Departure.ROLLED_BACK:
            self.accuse(evidence)
        if self._rolled_back_s is None:
            self._rolled_back_s = self._now_s()
            words = self._accused(evidence)
            self._live_status.update(log_fault=words)
            self._live_status.say(f"{words}; it was told, and is waited for, {timeouts.ROLLED_BACK_S / 60:.0f} minutes at most")
            self._live_status.write()
        self.check_rollback_time()
        return False

    def check_rollback_time(self) -> None:
        """Look for how long the log has shown fewer entries than it signed.

        Raises:
            OtherHistory: for longer than it is waited for.
        """
        if self._rolled_back_s is not None and self._now_s() - self._rolled_back_s > timeouts.ROLLED_BACK_S:
            raise OtherHistory(self._live_status.status.log_fault)

    @property
    def manifest(self) -> SignedManifest:
        """The run's manifest."""
        return self._signed

    def check_pair(self, known: ProvenCommit, other: ProvenCommit) -> None:
        """Look whether two commits prove that the log has two histories.

        Raises:
            OtherHistory: they do; the proof is kept.
        """
        if contradict(known.proven, other.proven):
            self.accuse(Histories.of_rounds(self._signed, known.receipt, other.receipt))

    def accuse(self, evidence: Histories) -> NoReturn:
        """Keep evidence against the log, and give it up.

        Raises:
            OtherHistory: always.
        """
        raise OtherHistory(self._accused(evidence))

    def check_contradiction(self, other: ProvenCommit) -> None:
        """Look whether a commit that does not fit to what is known proves that the log has two histories.

        Raises:
            OtherHistory: it does; the proof is kept.
        """
        for known in self._beside(other.proven.round.round):
            self.check_pair(known, other)

    def _beside(self, round_: int) -> Iterable[ProvenCommit]:
        found = [self._commits.proven_commit(number) for number in (round_, round_ - 1, round_ + 1)]
        return [each for each in (*found, self._held) if each is not None]

    def _accused(self, evidence: Histories) -> str:
        """Keep evidence; return what it shows, in a line for the person."""
        shown = evidence.check()
        if shown.departure is Departure.FORKED:
            self.proof = evidence
        path = self._store.directory / "proofs" / f"log-{shown.held.size}-{shown.shown.size}.proof"
        try:
            write_durably(path, pack(evidence))
        except StorageError as error:
            logger.error("proof not kept reason=%s", error)
        return f"{in_words(shown)}; the proof is in {path}"


def in_words(shown: Shown) -> str:
    """Return what evidence shows, for a person of a run."""
    if shown.departure is Departure.ROLLED_BACK:
        return f"the run's log shows {shown.shown.size} entries, and has signed for {shown.entries_held}: it is an older copy"
    if shown.departure is Departure.FORKED:
        many = len(shown.operators) > 1
        who = f"operators {', '.join(map(short, shown.operators))} have" if many else "its operator's key has"
        return f"the run's log goes two ways: {who} signed for another history beside that of {shown.entries_held}"
    return (
        f"the run's log shows {shown.shown.size} entries, and does not prove that they go on from the {shown.held.size} it has signed for"
    )
