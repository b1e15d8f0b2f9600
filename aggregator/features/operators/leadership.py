"""An operator among several, from its start to its end: a follower until its turn comes, then the leader, then a follower again."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from manta_swarm.aggregator.commit.writing import Committer, Event, Leading
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.features.operators.contact import Contact
from manta_swarm.aggregator.features.operators.etcd import Etcd
from manta_swarm.aggregator.features.operators.forwarding import Switch
from manta_swarm.aggregator.features.operators.leader import Deposed, Leader
from manta_swarm.aggregator.features.operators.leader_lease import LeaderLease
from manta_swarm.aggregator.features.operators.own_operator import OwnOperator
from manta_swarm.aggregator.features.operators.service import OperatorsService
from manta_swarm.aggregator.features.operators.verdicts import AGAIN_S
from manta_swarm.aggregator.status import AmongOperators
from manta_swarm.protocol.errors import RemoteFault, Unreachable, UserError
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.tasks import together, wait_within

_LOOK_S = 1.0  # between two looks at who is heard

logger = logging.getLogger("manta.operators")


class Leadership(Feature):
    """Runs one operator among several: as a follower, and as the leader when its turn comes."""

    def __init__(self, context: RunContext, own_operator: OwnOperator, leader_lease: LeaderLease, contact: Contact) -> None:
        """Prepare; ``start`` answers from then on, ``keep`` takes turns.

        Args:
            context: of the run.
            own_operator: this operator's.
            leader_lease: says whose turn it is.
            contact: says who of the others is there.
        """
        self._context = context
        self._own_operator = own_operator
        self._leader_lease = leader_lease
        self._contact = contact
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._leader: Leader | None = None
        self.service = OperatorsService(context.endpoint, own_operator, leader_lease)
        self.switch = Switch(context.endpoint, self.service, contact)
        self.writing: Leading | None = None
        self._last_leader = b""
        self._another = asyncio.Event()  # writes

    @property
    def committer(self) -> Committer:
        """See ``Feature``."""
        return self

    @property
    def leader(self) -> str | None:
        """See ``Committer``."""
        return self.position().leader

    def status(self) -> Mapping[str, object]:
        """See ``Feature``."""
        return {"operators": self.position()}

    def left_ms(self, now: int) -> int:
        """Return how long headers for the open round still have."""
        return self.service.left_ms() if self.writing is None else self.writing.closing.left_ms(now)

    def on_committed(self, *, is_leader: bool) -> None:
        """Tell the others what is open now."""
        if self._leader is not None:
            self._leader.tell()

    def position(self) -> AmongOperators:
        """Return where this operator stands among the others."""
        heard = self.service.leader
        names = tuple(peer_name(key) for key in sorted(self._contact.heard))
        if self.writing is not None and self._leader is not None:
            return AmongOperators(acts_as="leader", term=self._leader.ballot.term, leader=peer_name(self._own_operator.key), heard=names)
        leader = None if heard is None else peer_name(heard.key)
        if not self._own_operator.coming.takes_part:
            lacking, round_ = self._own_operator.coming.waits_for()
            waits_for = tuple(peer_name(key) for key in lacking)
            return AmongOperators(acts_as="newcomer", term=0, leader=leader, heard=names, waits_for=waits_for, from_round=round_)
        return AmongOperators(acts_as="follower", term=0 if heard is None else heard.ballot.term, leader=leader, heard=names)

    async def start(self) -> None:
        """Answer from now on.

        Raises:
            UserError: no etcd answers.
        """
        await self._leader_lease.check()
        await self.service.start()
        await self.switch.start()

    async def next_event(self) -> Event:
        """Return what happens next; each is told once, in order."""
        return await self._events.get()

    def _changed(self) -> None:
        self._events.put_nowait(Event.TURNED)

    async def _hear_commits(self) -> None:
        while True:
            await self._own_operator.next_commit()
            self._events.put_nowait(Event.COMMITTED)

    async def keep(self) -> None:
        """Take turns until this is cancelled.

        Raises:
            StorageError: the disk failed.
        """
        works = (self._take_turns(), self._watch(), self._contact.keep(), self._hear_commits(), self._hear_leaders(), self._hand_on())
        await together(*works)

    async def _take_part(self) -> None:
        """Return once this operator takes part: where it begins anew that takes a few rounds."""
        if self._own_operator.coming.takes_part:
            return
        self._context.console.say(
            "this operator begins anew: it follows the log, and takes part once every other one has answered and a few rounds more are in"
        )
        await self._own_operator.coming.take_part()
        self._context.console.say(f"this operator takes part from round {self._own_operator.log.ledger.round} on")
        self._changed()

    async def _watch(self) -> None:
        """Tell when this operator's position changes: a leader that falls silent does not say so."""
        before = self.position()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = self.position()
            if now != before:
                before = now
                self._changed()

    async def _take_turns(self) -> None:
        await self._take_part()
        while True:
            term = await self._leader_lease.won(self._contact)
            try:
                while self._leader_lease.is_held and self._contact.is_quorum():
                    try:
                        await self._write_while_it_lasts(max(term, self._own_operator.store.memory.promised.term + 1))
                    except Deposed as error:  # etcd began anew, with smaller numbers
                        term = error.promised + 1
            finally:
                await self._leader_lease.give_up()
            self._context.console.say("this operator does not write any more")
            self._changed()

    async def close(self) -> None:
        """Finish what is being written."""
        await self.service.follow_no_more()
        await self._leader_lease.give_up()
        await self._own_operator.close()

    async def _write_while_it_lasts(self, term: int) -> None:
        """Write until the turn is over.

        Raises:
            Deposed: the others listen to a later leader.
            StorageError: the disk failed.
        """
        leader = Leader(self._own_operator, term)
        tasks = [asyncio.create_task(work) for work in (self._leader_lease.kept(), self._contact.lost(), self._write(leader))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            leader.end()
            self.switch.forget()
            self._leader = None
            for task in tasks:
                task.cancel()
            if not self._contact.is_quorum():  # who hears one need not wait until all is finished here
                await self._leader_lease.give_up()
            await asyncio.gather(*tasks, return_exceptions=True)
            writing, self.writing = self.writing, None
            if writing is not None:
                await writing.close()

    async def _write(self, leader: Leader) -> None:
        await self.service.follow_no_more()
        beating = asyncio.create_task(leader.beat(self))
        try:
            try:
                kept = await leader.take_over()
            except Deposed:
                raise
            except (Unreachable, RemoteFault, UserError) as error:  # it is asked for again, of whoever is there then
                logger.warning("the turn could not be taken reason=%s", error)
                await asyncio.sleep(_LOOK_S)
                return
            self._leader = leader
            context = replace(self._context, endpoint=self.switch)
            self.writing = Leading(context, context.limits.closing(context.manifest), leader)
            self._last_leader = self._own_operator.key
            self.switch.another_writes()
            round_ = self._own_operator.log.ledger.round
            self._context.console.say(
                f"this operator writes now: term {leader.ballot.term}, after round {round_}, {len(kept)} contributions kept"
            )
            self._changed()
            await self.writing.open()
            async for _ in self.writing.rounds([(one.round, stored) for one, stored in kept]):
                self._events.put_nowait(Event.COMMITTED)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _hand_on(self) -> None:
        """Hand on verdicts to the others that write, until this is cancelled."""
        while True:
            self._another.clear()
            heard = self.service.leader
            await self._own_operator.verdicts.hand_on(None if self.writing is not None or heard is None else heard.ballot)
            await wait_within(self._another, AGAIN_S)

    async def _hear_leaders(self) -> None:
        """Take note of who else writes, until this is cancelled."""
        while True:
            heard = await self.service.next_heard()
            if heard.ballot.leader != self._last_leader:
                self._last_leader = heard.ballot.leader
                self._another.set()
                self.switch.another_writes()
                self._context.console.say(f"operator {peer_name(heard.key)} writes, term {heard.ballot.term}")
                self._changed()


def among_others(context: RunContext, etcd: Sequence[str]) -> Leadership:
    """Return an operator's place among the others of the run, with the addresses of the etcd that says whose turn it is.

    Raises:
        UserError: this folder is a copy, which may have forgotten what it promised the others.
        StorageError: what was remembered cannot be read.
    """
    context.guard.check_newest()
    run = context.ledger.run
    leader_lease = LeaderLease(Etcd(etcd), run, context.key)
    return Leadership(
        context, OwnOperator(context), leader_lease, Contact(context.node, Operators.of(context.manifest, run), context.directory)
    )
