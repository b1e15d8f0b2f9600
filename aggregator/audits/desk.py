"""What the log finds out of the claims in its tables: which questions are due, their records, the answers, and the findings that follow.

A question is due once the commit after a claim's table is there, which says what is asked (``protocol.trust``). What its key has to show
for it is asked of it (``aggregator.audits.shown``). Lots are computed in a process of its own (``aggregator.audits.auditor``). Beside what
is asked of a claim its contribution's body is compared with what the claims in it say: of one step and a dense codec with the records of
their lots, which costs next to nothing; else with the vectors that they name.

Where peers audit for the run (``aggregator.audits.volunteers``), most of it is left to them, and nobody is accused before they were asked.

After a start what is due is found in the log again; nothing depends on what was on its way.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from aggregator.attendants.attendants import Attendant, Patience
from aggregator.audits.doubts import Doubt, Doubts, OpenClaim
from aggregator.audits.jobs import FOLDER, MISSED, Found, Job, JobFolder
from aggregator.audits.shown import Shown
from aggregator.audits.tables import Tables
from aggregator.audits.trust_file import TrustFile
from aggregator.audits.volunteers import Volunteers
from aggregator.log.log import Log
from protocol.audits import HOLDS, LOT, SUM, WITHHELD, Finding, LotEvidence, SignedFinding
from protocol.closing import NotTaken
from protocol.errors import LedgerError, StorageError, UserError
from protocol.evidence import evidence_of
from protocol.records import Header, SignedClaim
from protocol.signing import Identity, peer_name
from protocol.standing import Due
from protocol.trust import Question
from swarm.rpc import Endpoint
from swarm.tasks import together, within

LOOK_S = 0.5
AGAIN_S = 60.0  # after a fault of the disk under the audits' folder
_PROGRAM = "aggregator.audits.auditor"
_NICENESS = 5  # findings are due within some rounds
_PATIENCE = Patience(start_s=1800.0, quiet_s=300.0)  # where all cores are busy its libraries may take long; it holds no lock
_AT_ONCE = 8  # claims whose keys are asked

logger = logging.getLogger("manta.audits")


@dataclass
class Totals:
    """What was done so far, since this program's start."""

    claims: int = 0  # that were looked at
    lots: int = 0  # computed again
    against: int = 0  # findings against a claim
    withheld: int = 0  # of these, records that nobody gave
    missed: int = 0  # questions that nothing can be found of any more
    cpu_ms: int = 0  # of the process that computes
    volunteers: int = 0  # peers that audit for the run, and are there now
    left: int = 0  # questions that were left to them


class Audits:
    """One log's."""

    def __init__(
        self,
        identity: Identity,
        log: Log,
        shown: Shown,
        jobs: JobFolder,
        *,
        take: Callable[[SignedFinding], Awaitable[None]],
        say: Callable[[str], None],
        told: TrustFile | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare.

        Args:
            identity: signs findings.
            log: has the tables.
            shown: has what was given of records and vectors, and asks for what was not.
            jobs: is shared with the process that computes.
            take: hands a finding to the log, which may refuse it by a LedgerError, or have no room for it now.
            say: prints a line for the person.
            told: is told after each commit what it all comes to.
            rng: draws what is looked at here though volunteers look at it too; None: nobody can foresee it.
        """
        self._told = told
        self._identity = identity
        self._log = log
        self._shown = shown
        self._jobs = jobs
        self._take = take
        self._say = say
        self._tables = Tables(log)
        self._volunteers = Volunteers(log, self._tables, identity.public_key, rng or random.SystemRandom())
        self._trust = log.ledger.manifest.trust
        self._looked_at = self._got_in = 0  # the newest round: after which it was looked for what is due, and for records that lack
        self._seen: dict[Question, int] = {}  # those that were taken up, with the round of their table
        self._open: dict[bytes, OpenClaim] = {}  # by claim
        self._due: dict[Question, Due] = {}  # what was open when it was looked last
        self._left: dict[Question, int] = {}  # to volunteers, with the round of their table
        self._doubts = Doubts(log, self._volunteers)  # what speaks against a claim, and is not handed in yet
        self._untaken: list[Doubt] = []  # what the log had no room for: it is handed in again after the next commit
        self._changed = asyncio.Event()
        is_alone = len(log.ledger.manifest.operators) == 1
        self._since = 0 if is_alone else log.ledger.round  # of tables from then on it knows what was shown; its own disk knows of all
        self.totals = Totals()
        self.again_s = AGAIN_S
        self.rounds_asked = 0  # after how many commits those who had not given records were asked for them

    def committed(self) -> None:
        """A round was committed."""
        self._changed.set()

    async def serve(self, endpoint: Endpoint) -> None:
        """Tell peers that audit what waits for them, from now on."""
        await self._volunteers.serve(endpoint)

    async def keep(self) -> None:
        """Ask and answer until this is cancelled. While the disk under what audits keep refuses, they pause, and the run goes on.

        Raises:
            StorageError: the log has stopped.
        """
        while True:
            try:
                await self._keep()
            except (StorageError, UserError) as error:  # the latter where the folder cannot be made
                self._log.entries(0, 0)  # raises where it is the log that has stopped
                self._say(f"audits pause, the run goes on: {error}")
            self._open.clear()  # what is due is found in the log again
            self._seen.clear()
            self._doubts.clear()
            self._untaken.clear()
            self._looked_at = self._got_in = 0
            await asyncio.sleep(self.again_s)

    async def _keep(self) -> None:
        await asyncio.to_thread(self._jobs.clear)
        getting: asyncio.Task[None] | None = None
        try:
            while True:
                self._changed.clear()
                if self._looked_at < self._log.ledger.round:
                    self._looked_at = self._log.ledger.round
                    self._look()
                    untaken, self._untaken = self._untaken, []
                    for doubt in [*untaken, *self._doubts.ripe(self._note_again)]:
                        await self._hand_in(doubt.one, doubt.question, doubt.finding, doubt.reason)
                    if self._told is not None:
                        await self._told.tell(self._log.ledger, self._volunteers.due(), asdict(self.totals))
                    await asyncio.to_thread(self._shown.prune, self._looked_at)
                if getting is not None and getting.done():
                    getting.result()
                    getting = None
                if self._got_in < self._looked_at and getting is None:
                    self._got_in = self._looked_at
                    getting = asyncio.create_task(self._get_shown())
                # The threads have lists of their own: what is open changes meanwhile, as records are got.
                await asyncio.to_thread(self._ask, list(self._open.values()))
                for name, found in await asyncio.to_thread(self._answers, [name for one in self._open.values() for name in one.jobs]):
                    await self._settle(name, found)
                await within(self._changed, LOOK_S)
        finally:
            if getting is not None:
                getting.cancel()
                await asyncio.gather(getting, return_exceptions=True)

    # What is due.

    def _look(self) -> None:
        """Take up what is due and was not yet; forget what is too old to be found."""
        own, round_ = self._identity.public_key, self._log.ledger.round
        self._due = {due.question: due for due in self._volunteers.due()}
        self.totals.volunteers = self._volunteers.count
        for due in self._due.values():
            claimed, question = due.claimed, due.question
            if question in self._seen or own not in due.panel or any(vote.auditor == own for vote in due.votes):
                continue
            signed, header = self._tables.claim(claimed.round, claimed.digest)
            self._compare_body(due, signed, header)
            if self._volunteers.are_left(due):
                self.totals.left += question not in self._left
                self._left[question] = claimed.round
                continue
            self._note(question, signed, header, claimed.round, claimed.row, due.beacon)
        self._forget_before(round_ - self._trust.kept_rounds)

    def _forget_before(self, oldest: int) -> None:
        """Forget the tables before ``oldest``, but what is accused in them, for as long as that can be answered."""
        accused = self._accused()
        for digest, one in list(self._open.items()):
            if one.round < oldest and digest not in accused:
                self.totals.missed += len(one.questions)
                self._forget(digest)
        oldest -= self._trust.shown_rounds - self._trust.kept_rounds
        self._seen = {question: round_ for question, round_ in self._seen.items() if round_ >= oldest - 1}
        self._left = {question: round_ for question, round_ in self._left.items() if round_ >= oldest - 1}
        self._tables.forget(oldest - 1)

    def _accused(self) -> set[bytes]:
        """Return the claims that somebody spoke against, and that may still be answered for."""
        return {due.claimed.digest for due in self._due.values() if due.is_accused}

    def _compare_body(self, due: Due, signed: SignedClaim, header: Header) -> None:
        """Note that a contribution with a claim that is due is to be compared with what the claims in it say.

        Where that takes vectors, each claim that is due answers for its own, and the founder for the body; else the founder for all.
        """
        founder = header.contribution.open().founder
        own = next(each for each in header.claims if self._log.ledger.verified.claim(each).key == founder)
        for each in dict.fromkeys((own, signed)) if self._shown.is_by_vectors else (own,):
            of_sum = Question(each.digest, SUM, 0)
            if of_sum not in self._seen:
                self._note(of_sum, each, header, due.claimed.round, due.claimed.row, due.beacon)

    def _goes_deeper(self, one: OpenClaim) -> bool:
        """Whether vectors say whose fault it is that a body is not what records of lots add up to."""
        return len(one.every) > 1 and not self._shown.is_by_vectors and not one.is_deep

    def _look_deeper(self, one: OpenClaim) -> None:
        """Have all members of a contribution show what they gave."""
        for signed, _ in one.every:
            self._note(Question(signed.digest, SUM, 0), signed, one.header, one.round, one.row, one.beacon)
            self._open[signed.digest].is_deep = True

    def _note(self, question: Question, signed: SignedClaim, header: Header, round_: int, row: int, beacon: bytes) -> None:
        self._seen[question] = round_
        if signed.digest not in self._open:
            every = tuple((each, self._log.ledger.verified.claim(each)) for each in header.claims)
            opened = self._log.ledger.verified.claim(signed)
            self._open[signed.digest] = OpenClaim(signed, opened, header, every, round_, row, beacon, self._tables.was_left(opened, round_))
            self.totals.claims += 1
        self._open[signed.digest].questions |= {question}

    def _note_again(self, doubt: Doubt) -> None:
        one = doubt.one
        self._note(doubt.question, one.claim, one.header, one.round, one.row, one.beacon)

    def _forget(self, digest: bytes) -> None:
        one = self._open.pop(digest, None)  # another task may have given it up meanwhile
        for name in () if one is None else list(one.jobs):  # a thread may ask more
            self._jobs.forget(name)

    # What is shown.

    async def _get_shown(self) -> None:
        """Ask for what was not given, once a round and claim."""
        round_, open_ = self._got_in, list(self._open.values())
        lacking = await asyncio.to_thread(lambda: [one for one in open_ if self._shown.lacks(one)])
        for start in range(0, len(lacking), _AT_ONCE):
            await together(*(self._get_shown_of(one, round_) for one in lacking[start : start + _AT_ONCE]))
        self.rounds_asked += 1

    async def _get_shown_of(self, one: OpenClaim, round_: int) -> None:
        lost = await self._shown.get(one, round_, is_accused=one.claim.digest in self._accused())
        if lost is None or one.jobs:  # what can be found of it without that is found first
            return
        if lost.withheld is not None and self._may_be_said(one, lost.withheld):
            self.totals.withheld += 1
            await self._find(one, lost.withheld, WITHHELD, b"", ())
        else:
            self.totals.missed += sum(question.check != SUM for question in one.questions)
        self._forget(one.claim.digest)

    def _was_there(self, one: OpenClaim) -> bool:
        standing = self._log.ledger.standing
        claimed = standing.claimed(one.round, one.claim.digest)
        return claimed is not None and standing.was_there(claimed)

    def _may_be_said(self, one: OpenClaim, question: Question) -> bool:
        """Return whether a key showed nobody what it had to: not where others found it to hold, or perhaps were shown it before it left."""
        decision = self._log.ledger.standing.decisions.get(question)
        is_shown = decision is not None and decision.outcome == HOLDS
        return not is_shown and (self._was_there(one) or one.round >= self._since)

    # Answers.

    def _ask(self, open_: Sequence[OpenClaim]) -> None:
        """Put what can be answered to the process that computes."""
        ledger = self._log.ledger
        for one in open_:
            if one.jobs:
                continue
            base = one.opened.round - 1
            for question in sorted(one.questions):
                if not self._shown.is_ready(one, question):
                    continue
                job = Job(
                    claim=one.claim,
                    check=question.check,
                    lot=question.lot,
                    round=one.round,
                    contribution=one.header.contribution.digest,
                    floor=ledger.floor_at(base),
                    state=ledger.state_at(base),
                    step=self._shown.step_of(one),
                    deep=int(one.is_deep),
                    left=int(one.was_left),
                )
                self._jobs.ask(job)
                one.jobs[job.name] = question

    def _answers(self, names: Sequence[str]) -> list[tuple[str, Found]]:
        return [(name, found) for name in names if (found := self._jobs.found(name)) is not None]

    async def _settle(self, name: str, found: Found) -> None:
        """Make a finding of an answer."""
        one = next((each for each in self._open.values() if name in each.jobs), None)
        if one is None:  # given up meanwhile
            self._jobs.forget(name)
            return
        question = one.jobs.pop(name)
        self._jobs.forget(name)
        one.questions -= {question}
        self.totals.lots += found.lots
        self.totals.cpu_ms += found.cpu_ms
        if found.outcome == MISSED:
            self._doubts.drop(question)
            self.totals.missed += 1
            logger.warning("not audited round=%d reason=%s", one.round, found.reason)
        elif question.check == SUM and found.outcome != HOLDS and self._goes_deeper(one):
            self._look_deeper(one)
        elif question.check != SUM or found.outcome != HOLDS:  # a sum that holds is no more than what there has to be
            evidence = await asyncio.to_thread(self._evidence, one, question)
            await self._find(one, question, found.outcome, found.projection, evidence, found.reason)
        if not one.questions:
            self._forget(one.claim.digest)

    def _evidence(self, one: OpenClaim, question: Question) -> tuple[LotEvidence, ...]:
        if question.check != LOT:
            return ()
        records = self._shown.records.records(one.claim)
        if records is None:
            raise StorageError("the records of a claim that was audited are gone; check the disk")
        return (evidence_of(records, question.lot),)

    async def _find(
        self, one: OpenClaim, question: Question, outcome: str, projection: bytes, evidence: tuple[LotEvidence, ...], reason: str = ""
    ) -> None:
        finding = Finding(
            run=self._log.ledger.run,
            auditor=self._identity.public_key,
            claim=one.claim.digest,
            round=one.round,
            row=one.row,
            check=question.check,
            lot=question.lot,
            outcome=outcome,
            projection=projection,
            evidence=evidence,
        )
        if not self._doubts.keep(one, question, self._due.get(question), finding, reason):
            await self._hand_in(one, question, finding, reason)

    async def _hand_in(self, one: OpenClaim, question: Question, finding: Finding, reason: str) -> None:
        try:
            await self._take(SignedFinding.sign(finding, self._identity))
        except NotTaken as error:
            logger.info("finding not taken round=%d reason=%s", one.round, error)
            self._untaken.append(Doubt(one, question, finding, reason, self._log.ledger.round))
            return
        except LedgerError as error:  # the key is guilty already, or others have decided
            logger.info("finding refused round=%d reason=%s", one.round, error)
            return
        if finding.outcome != HOLDS:
            self.totals.against += 1
            why = f": {reason}" if reason else ""
            who = peer_name(one.opened.key)
            self._say(f"audit: a claim of {who} in round {one.round} {finding.outcome} ({question.check}{why})")


def attendant(directory: Path, share: float, arguments: Sequence[str]) -> Attendant:
    """Return the process that computes lots again for the run in ``directory``, in so large a share of a core's time."""
    command = ("-m", _PROGRAM, str(directory.absolute()), str(share), *arguments)
    return Attendant("auditor", command, directory / FOLDER / "auditor.log", niceness=_NICENESS, patience=_PATIENCE)
