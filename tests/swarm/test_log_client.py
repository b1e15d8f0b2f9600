"""What a log answers is believed with its proof and not otherwise: a small real log, and one that lies."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, ProofError, RemoteFault, SignatureError, Unreachable
from protocol.ledger import Ledger
from protocol.merkle import Tree, leaf_hash
from protocol.notes import TreeHead, origin, sign_tree_head
from protocol.records import (
    Proposal,
    Receipt,
    Round,
    SignedManifest,
    Statement,
    claim_entry,
    commit_digest,
    round_entry,
    sign_vote,
)
from protocol.signing import Identity, PublicKey, sha256
from protocol.table import Table
from swarm.log_client import Commitment, LogClient, fetch_manifest, serve_manifest
from swarm.memory import MemoryEndpoint, MemoryNetwork
from swarm.rpc import Refused
from tests.swarm.members import OPERATOR, PEERS, claim_of, run, sign

SIGNED = sign()
RUN = SIGNED.run
LIAR = Identity(sha256(b"liar"))


def proposal_of(peers: Sequence[Identity], state: bytes = b"state", voters: Sequence[Identity] | None = None) -> Proposal:
    claims = [claim_of(peer, RUN, samples=32) for peer in peers]
    table = Table.settle(b"a" * 20, claims, manifest=SIGNED.open(), run=RUN, round=1, last_commit=RUN)
    statement = Statement(RUN, 1, RUN, table.digest, sha256(b"mean"), sha256(state))
    votes = [sign_vote(statement, peer) for peer in (peers if voters is None else voters)]
    return Proposal(statement, table.claims, tuple(sorted(votes, key=lambda vote: vote.key)))


def round_of(proposal: Proposal) -> Round:
    return Round(proposal.statement, tuple(claim.digest for claim in proposal.claims), proposal.votes)


class Log:
    """A log with the rules left out: it appends whatever it is given."""

    def __init__(self, operator: Identity = OPERATOR, run_: bytes = RUN) -> None:
        self.operator = operator
        self.entries: list[bytes] = []
        self.tree = Tree()
        self.origin = origin(run_, operator.public_key)
        self.name = self.origin

    def append(self, entry: bytes) -> None:
        self.entries.append(entry)
        self.tree.append(leaf_hash(entry))

    def receipt(self, index: int = -1) -> Receipt:
        index %= len(self.entries)
        head = TreeHead(self.origin, self.tree.size, self.tree.root())
        note = sign_tree_head(head, self.name, self.operator)
        return Receipt(self.entries[index], index, tuple(self.tree.inclusion_proof(index)), note)


def honest_log(proposal: Proposal | None = None) -> Log:
    """Return a log that took a proposal by the ledger's rules."""
    log, ledger = Log(), Ledger(SIGNED)
    for entry in ledger.proposal_entries(proposal or proposal_of(PEERS[:3])):
        ledger.append(entry)
        log.append(entry)
    return log


def log_of(entry: bytes, operator: Identity = OPERATOR, run_: bytes = RUN) -> Log:
    log = Log(operator, run_)
    log.append(claim_entry(claim_of(PEERS[0], RUN)))
    log.append(entry)
    return log


class Line:
    """A peer's line to an operator who answers with given bytes."""

    def __init__(self, answer: bytes, signed: SignedManifest = SIGNED) -> None:
        network = MemoryNetwork()
        self.answer = answer
        self.received: list[bytes] = []
        self.server: MemoryEndpoint = network.endpoint(OPERATOR.public_key)
        self.client = LogClient(network.endpoint(PEERS[0].public_key), signed.open(), signed.run)

    async def serve(self) -> "Line":
        async def answer(_caller: PublicKey, request: bytes) -> bytes:
            self.received.append(request)
            return self.answer

        for method in ("latest", "propose"):
            await self.server.serve(method, answer)
        return self

    def latest(self) -> Commitment | None:
        async def work() -> Commitment | None:
            return await (await self.serve()).client.latest()

        return run(work())

    def propose(self, proposal: Proposal) -> Commitment:
        async def work() -> Commitment:
            return await (await self.serve()).client.propose(proposal)

        return run(work())


def test_the_newest_commit_of_an_honest_log_is_believed() -> None:
    proposal = proposal_of(PEERS[:3])
    log = honest_log(proposal)
    commitment = Line(pack(log.receipt())).latest()
    assert commitment is not None
    assert commitment.proven.round == round_of(proposal)
    assert commitment.proven.commit == commit_digest(round_entry(round_of(proposal)))
    assert commitment.proven.tree_head.size == 4
    assert commitment.receipt == log.receipt()


def test_before_the_first_round_there_is_no_commit() -> None:
    assert Line(b"").latest() is None


def test_a_proposal_arrives_as_it_is_and_its_commit_comes_back() -> None:
    proposal = proposal_of(PEERS[:3])
    line = Line(pack(honest_log(proposal).receipt()))
    assert line.propose(proposal).proven.round.statement == proposal.statement
    assert unpack(Proposal, line.received[0], max_bytes=2**20) == proposal


def test_the_commit_that_comes_back_may_be_another_groups() -> None:
    other = proposal_of(PEERS[3:6], state=b"another")
    commitment = Line(pack(honest_log(other).receipt())).propose(proposal_of(PEERS[:3]))
    assert commitment.proven.round.statement.state == sha256(b"another")


def test_the_commit_of_another_round_is_no_answer_to_a_proposal() -> None:
    proposal = proposal_of(PEERS[:3])
    later = replace(proposal, statement=replace(proposal.statement, round=2))
    with pytest.raises(EncodingError, match="another round"):
        Line(pack(honest_log(proposal).receipt())).propose(later)


def forged_entry(log: Log) -> Receipt:
    return replace(log.receipt(), entry=round_entry(round_of(proposal_of(PEERS[:3], state=b"forged"))))


def forged_size(log: Log) -> Receipt:
    receipt = log.receipt()
    return replace(receipt, tree_head=receipt.tree_head.replace("\n4\n", "\n5\n"))


@pytest.mark.parametrize(
    ("forge", "error"),
    [
        pytest.param(forged_entry, ProofError, id="another round under the same head"),
        pytest.param(lambda log: replace(log.receipt(), index=0), ProofError, id="another index"),
        pytest.param(lambda log: replace(log.receipt(), index=-1), ProofError, id="a negative index"),
        pytest.param(lambda log: replace(log.receipt(), proof=()), ProofError, id="no proof"),
        pytest.param(lambda log: replace(log.receipt(), proof=(*log.receipt().proof, bytes(32))), ProofError, id="a longer proof"),
        pytest.param(lambda log: replace(log.receipt(), proof=(b"short",)), ProofError, id="a malformed proof"),
        pytest.param(lambda log: replace(log.receipt(), tree_head=""), EncodingError, id="no tree head"),
        pytest.param(forged_size, SignatureError, id="a changed size"),
        pytest.param(lambda log: log.receipt(0), EncodingError, id="an entry that is no round"),
    ],
)
def test_a_forged_receipt_is_refused(forge: Callable[[Log], Receipt], error: type[RemoteFault]) -> None:
    log = honest_log()
    with pytest.raises(error):
        Line(pack(forge(log))).latest()


def test_a_receipt_of_anothers_log_is_refused() -> None:
    entry = honest_log().entries[-1]
    with pytest.raises(SignatureError):
        Line(pack(log_of(entry, LIAR).receipt())).latest()


def test_a_head_that_another_signed_in_the_operators_name_is_refused() -> None:
    log = log_of(honest_log().entries[-1])
    log.operator = LIAR
    with pytest.raises(SignatureError):
        Line(pack(log.receipt())).latest()


def test_a_head_of_the_operators_other_log_is_refused() -> None:
    log = log_of(honest_log().entries[-1])
    log.origin = origin(sha256(b"another run"), OPERATOR.public_key)  # the key's name is this log's, the origin line is not
    with pytest.raises(ProofError, match="another log"):
        Line(pack(log.receipt())).latest()


def test_a_receipt_of_another_run_is_refused() -> None:
    other = sign(seed=99)
    statement = replace(proposal_of(PEERS[:1]).statement, run=other.run, last_commit=other.run)
    entry = round_entry(Round(statement, (sha256(b"claim"),), (sign_vote(statement, PEERS[0]),)))
    line = Line(pack(log_of(entry, run_=other.run).receipt()), other)
    assert line.latest() is not None  # there it is right
    with pytest.raises(SignatureError):
        Line(line.answer).latest()
    with pytest.raises(EncodingError, match="not a round of this run"):  # the operator mixes its runs up
        Line(pack(log_of(entry).receipt())).latest()


def test_a_round_without_a_quorum_is_refused_though_the_operator_signed_it() -> None:
    for voters in ([], PEERS[:1], [PEERS[0], PEERS[0]]):
        entry = round_entry(round_of(proposal_of(PEERS[:3], voters=voters)))
        with pytest.raises(EncodingError, match="quorum"):
            Line(pack(log_of(entry).receipt())).latest()


def test_a_round_with_a_false_vote_is_refused_though_the_operator_signed_it() -> None:
    honest = round_of(proposal_of(PEERS[:3]))
    false = (replace(honest.votes[0], signature=bytes(64)), *honest.votes[1:])
    with pytest.raises(SignatureError):
        Line(pack(log_of(round_entry(replace(honest, votes=false))).receipt())).latest()


@pytest.mark.parametrize("answer", [b"garbage", b"\x00", b"\x84\x40\x00\x80\x60", b"\x80" * 200_000])
def test_bytes_that_are_no_receipt_are_refused(answer: bytes) -> None:
    with pytest.raises(RemoteFault):
        Line(answer).latest()


def test_a_log_that_is_away_is_weather() -> None:
    line = Line(b"")
    with pytest.raises(Unreachable):
        run(line.client.latest())


def manifest_from(answer: bytes | None) -> SignedManifest:
    async def work() -> SignedManifest:
        network = MemoryNetwork()
        server = network.endpoint(OPERATOR.public_key)
        if answer is None:
            await serve_manifest(server, SIGNED)
        else:

            async def on_manifest(_caller: PublicKey, _request: bytes) -> bytes:
                assert answer is not None
                return answer

            await server.serve("manifest", on_manifest)
        return await fetch_manifest(network.endpoint(PEERS[0].public_key), OPERATOR.public_key)

    return run(work())


def test_the_manifest_that_is_served_is_the_signed_one() -> None:
    assert manifest_from(None) == SIGNED
    assert manifest_from(None).open() == SIGNED.open()


def test_what_is_no_manifest_is_refused() -> None:
    with pytest.raises(RemoteFault):
        manifest_from(b"garbage")


def test_a_proposal_that_the_log_refuses_is_told_with_its_reason() -> None:
    async def work() -> None:
        line = await Line(b"").serve()

        async def refuse(_caller: PublicKey, _request: bytes) -> bytes:
            raise EncodingError("no quorum of votes")

        await line.server.serve("propose", refuse)
        await line.client.propose(proposal_of(PEERS[:3]))

    with pytest.raises(Refused, match="no quorum of votes"):
        run(work())
