"""A real peer that signs and hands in false digests: ``python lying_peer.py state|mean join ...``.

It takes part in the reduce like everybody, then states another state, or another mean, votes for that, and tries to get the log to take
it: with its own vote alone, and with its vote in everybody's name.
"""

import sys
from dataclasses import replace

from peer.cli import main
from protocol.errors import MantaError
from protocol.records import Proposal, Statement, Vote, sign_vote
from protocol.rounds import RoundMachine
from protocol.signing import sha256
from swarm.averager import Averager
from swarm.log_client import LogClient

LIE = sys.argv.pop(1)
true_agree = RoundMachine.agree
true_run = Averager._run


def false_agree(self: RoundMachine, attempt: bytes, mean: bytes, state: bytes) -> Statement:
    """State a digest that nothing has."""
    statement = true_agree(self, attempt, mean, state)
    self._statement = replace(statement, **{LIE: sha256(b"a lie")})
    return self._statement


async def run_and_propose_alone(self: Averager, active, update):  # type: ignore[no-untyped-def]
    """After the reduce, hand the lie in at once, before the others hand in the truth."""

    async def lying_update(mean):  # type: ignore[no-untyped-def]
        state = await update(mean)
        truth = Statement(self._machine._run, self._machine.round, self._machine.last_commit, active.table.digest, mean.digest, state)
        lie = replace(truth, **{LIE: sha256(b"a lie")})
        own = sign_vote(lie, self._identity)
        in_everybodys_name = tuple(Vote(key, own.signature) for key in sorted(active.table.keys))
        log = LogClient(self._endpoint, self._manifest, self._machine._run)
        for votes in ((own,), in_everybodys_name):
            try:
                await log.propose(Proposal(lie, active.table.claims, votes))
            except MantaError as error:
                print(f"lie refused: {error}", flush=True)
        return state

    return await true_run(self, active, lying_update)


RoundMachine.agree = false_agree  # type: ignore[method-assign]
Averager._run = run_and_propose_alone  # type: ignore[method-assign]
main()
