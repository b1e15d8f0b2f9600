"""The end of an audited run: verdicts are waited for after the last round, and then all is paid by one entry, once."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.settings.sections import TrustSection
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.auditing import VERDICT
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.verdicts import Outcome, Verdict
from tests.aggregator.at_work import Aggregator, World
from tests.aggregator.real_run import CONFIG, PEERS
from tests.audited import AUDITORS, verdict_of

AUDITOR = AUDITORS[0]
ROUNDS, SETTLE_S = 3, 50
TRUST = TrustSection(
    mode="audited",
    auditors=(peer_name(AUDITOR.public_key),),
    proven=tuple(peer_name(peer.public_key) for peer in PEERS[:2]),
    audit_percent=100,
    newcomer_percent=100,
    kept_rounds=1,
    pending_rounds=6,
    settle_s=SETTLE_S,
)
AUDITED = CONFIG.model_copy(update={"trust": TRUST, "run": CONFIG.run.model_copy(update={"rounds": ROUNDS})})


async def to_the_end(log: Aggregator) -> None:
    """Have the rounds of the run committed."""
    for _ in range(ROUNDS):
        await log.everybodys_round()
    assert log.ledger.finished


async def hand_in(log: Aggregator, signed: Signed[Verdict]) -> None:
    assert await log.call(AUDITOR, VERDICT, pack(signed)) == b""


def all_good(log: Aggregator) -> list[Signed[Verdict]]:
    """Return the auditor's word that all that is audited is good."""
    return [
        verdict_of(log.ledger, peer, auditor=AUDITOR, round=audit.round)
        for audit in log.ledger.reputation.audits.values()
        for peer in PEERS
        if peer.public_key in audit.work.keys
    ]


async def test_once_all_that_was_drawn_is_judged_the_run_is_settled_and_takes_nothing_more(tmp_path: Path) -> None:
    async with World(tmp_path / "aggregator", AUDITED) as world:
        log = await world.start()
        await to_the_end(log)
        verdicts, late = all_good(log), verdict_of(log.ledger, PEERS[0], Outcome.VOID, auditor=AUDITOR, round=1)
        assert len(verdicts) == (ROUNDS - 1) * len(PEERS)  # of the last round nothing is drawn
        for signed in verdicts[:-1]:
            await hand_in(log, signed)
        assert not log.ledger.settled
        await hand_in(log, verdicts[-1])
        await log.until(lambda: log.ledger.settled)
        assert sum(log.ledger.credits().values()) > 0
        assert log.ledger.size == ROUNDS * (len(PEERS) + 1) + len(verdicts) + 1
        await log.working  # it has nothing more to do
        with pytest.raises(Refused, match="settled"):
            await hand_in(log, late)
        with pytest.raises((LedgerError, NotTaken), match="settled"):
            await log.verdicts.hand_in(late)
        assert not log.waiting.all()


async def test_where_verdicts_lack_it_is_settled_when_its_time_is_over_also_after_a_kill(tmp_path: Path) -> None:
    async with World(tmp_path / "aggregator", AUDITED) as world:
        log = await world.start()
        await to_the_end(log)
        signed = verdict_of(log.ledger, PEERS[1], Outcome.VOID, auditor=AUDITOR, round=1)
        await hand_in(log, signed)
        log.pass_time(1000 * SETTLE_S // 2)
        image = world.image()
        log = await world.start(image)
        assert not log.ledger.settled
        assert signed.digest in log.waiting
        log.pass_time(1000 * SETTLE_S - 1)
        await hand_in(log, signed)
        assert not log.ledger.settled
        log.pass_time(2)
        await log.until(lambda: log.ledger.settled)
        assert PEERS[1].public_key in log.ledger.reputation.guilty
        paid = log.ledger.reputation.earned
        assert paid[PEERS[0].public_key] > 0
        assert paid[PEERS[1].public_key] == 0
        assert paid[PEERS[2].public_key] == 0  # it was never proven, and nobody found its work good
        await world.lives.pop().stop()
        log = await world.start(image)
        assert log.ledger.settled
        await log.working
