"""Four operators with real logs, states and disks on a network in memory: takeovers, what is kept, and what is refused."""

import asyncio

import pytest

from manta_swarm.aggregator.features.operators.leader import Deposed, Leader
from manta_swarm.aggregator.features.operators.lending import ENTRIES, LENT
from manta_swarm.aggregator.features.operators.service import ACCEPT, KEEP, PROMISE, SIGN, AskPromise
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.ballots import Ballot, EntryBatch, NotNext, check_vote
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import PublicKey
from tests.aggregator.features.operators.four import FOUR, Four, ended, of_four
from tests.aggregator.real_run import PEERS, everybodys, made
from tests.memory_log import until


@of_four()
async def test_what_has_an_inclusion_promise_is_in_the_next_leaders_round_and_who_was_away_gets_all_of_it(four: Four) -> None:
    leader, kept = await four.write(0, 1)
    assert kept == []
    contributions = everybodys(four.runs[0].log.ledger)
    await four.kill(3)
    await leader.store([(1, one.kept) for one in contributions])
    await four.kill(0)
    await four.start(3)
    second, kept = await four.write(3, 2)  # which had not heard of them
    assert sorted(kept) == sorted(one.digest for one in contributions)
    await four.commit(second, 3, contributions)
    await four.until_all_have(1, (1, 2, 3))
    await four.start(0)
    await four.until_all_have(1, (0,))
    assert len(four.heads((0, 1, 2, 3))) == 1
    assert four.runs[0].state_keeper.state is not None
    assert four.runs[0].state_keeper.state.round == 1
    await four.round(second, 3)
    await four.until_all_have(2, (0, 1, 2, 3))
    assert len(four.heads((0, 1, 2, 3))) == 1


@of_four()
async def test_a_batch_that_a_quorum_accepted_and_nobody_signed_is_the_next_leaders_who_brings_who_is_behind_up_to_it(four: Four) -> None:
    await four.kill(3)
    first, _ = await four.write(0, 1)
    for round_ in (1, 2):
        await four.round(first, 0)
        await four.until_all_have(round_, (0, 1, 2))
    contributions = await four.store(first, 0)
    four.lost = lambda _sender, _receiver, method: method == SIGN
    entries, after = four.round_for(0, contributions)
    committing = asyncio.create_task(first.write(entries, after))
    await until(lambda: all(four.own_operators[place].store.memory.accepted_at(four.runs[0].log.head.size) for place in (0, 1, 2)))
    await ended(committing)
    await four.kill(0)
    four.lost = lambda *_: False
    await four.start(3)
    await four.write(1, 2)  # which needs the votes of all that are left for what had been accepted
    await four.until_all_have(3, (1, 2, 3))
    assert four.runs[3].log.entries(0, 1000)[-len(entries) :] == entries
    assert four.runs[3].log.ledger.state == after.blob.root


@of_four()
async def test_where_one_that_voted_does_not_sign_another_that_had_no_vote_does(four: Four) -> None:
    leader, _ = await four.write(0, 1)
    contributions = await four.store(leader, 0)
    decided = asyncio.Event()

    def lost(_sender: PublicKey, receiver: PublicKey, method: str) -> bool:
        if method == SIGN:
            decided.set()
        late, gone = FOUR[3].public_key, FOUR[1].public_key
        return (receiver, method) == (gone, SIGN) or ((receiver, method) == (late, ACCEPT) and not decided.is_set())

    four.lost = lost
    await four.commit(leader, 0, contributions)
    await four.until_all_have(1, (0, 2, 3))


@of_four()
async def test_who_is_behind_asks_the_next_leader_where_the_one_it_asked_stands_still(four: Four) -> None:
    await four.kill(3)
    first, _ = await four.write(0, 1)
    await four.round(first, 0)
    await four.until_all_have(1, (0, 1, 2))
    still, asked = FOUR[0].public_key, asyncio.Event()

    def delay_s(_caller: PublicKey, receiver: PublicKey, method: str) -> float:
        if (receiver, method) != (still, ENTRIES):
            return 0.0
        asked.set()
        return 3600.0

    four.network.delay_s = delay_s
    await four.start(3)
    await asked.wait()
    four.lost = lambda sender, receiver, _method: still in (sender, receiver)
    second, _ = await four.write(1, 2)
    await four.until_all_have(1, (1, 2, 3))
    await four.round(second, 1)  # which takes all three
    await four.until_all_have(2, (1, 2, 3))


@of_four()
async def test_who_got_the_entries_by_another_way_votes_for_them_all_the_same(four: Four) -> None:
    first, _ = await four.write(0, 1)
    await four.round(first, 0)
    await four.until_all_have(1, (0, 1, 2, 3))
    log = four.runs[1].log
    batch = EntryBatch(0, tuple(log.entries(0, 100)), log.head.root)
    ballot = Ballot(2, FOUR[2].public_key)
    vote = await four.own_operators[1].accept(ballot, batch, FOUR[2].public_key)
    check_vote(vote, log.ledger.run, ballot, batch.size, batch.root)
    assert four.own_operators[1].store.memory.promised == ballot
    with pytest.raises(NotNext):
        await four.own_operators[1].accept(ballot, EntryBatch(0, batch.entries, bytes(32)), FOUR[2].public_key)


@of_four()
async def test_a_commit_that_a_later_leaders_word_overtakes_is_done_once(four: Four) -> None:
    first, _ = await four.write(0, 1)
    await four.round(first, 0)
    await four.until_all_have(1, (1, 2))
    log, own_operator = four.runs[1].log, four.own_operators[3]
    entries, note = log.entries(0, 100), log.tree_head
    # By the beat that tells it, and twice beside that.
    await asyncio.gather(own_operator.go_on_to(note, FOUR[1].public_key), *(own_operator.apply(0, entries, note) for _ in range(2)))
    assert four.heads((1, 3)) == {(log.head.size, log.head.root, log.ledger.state)}
    assert four.runs[3].state_keeper.state is not None
    assert four.runs[3].state_keeper.state.round == 1


@of_four()
async def test_a_takeover_that_does_not_get_what_has_an_inclusion_promise_comes_to_nothing_and_the_next_one_gets_it(four: Four) -> None:
    first, _ = await four.write(0, 1)
    with_inclusion_promise, without = everybodys(four.runs[0].log.ledger)[:2]
    await four.kill(3)
    await first.store([(1, with_inclusion_promise.kept)])
    four.lost = lambda _sender, receiver, method: method == KEEP and receiver != FOUR[1].public_key
    keeping = asyncio.create_task(first.store([(1, without.kept)]))  # by two of four
    await until(lambda: len(four.own_operators[1].contributions.held) == 2)
    first.end()
    with pytest.raises(NotTaken):
        await keeping
    await four.kill(0)
    await four.start(3)
    four.lost = lambda _sender, _receiver, method: method == LENT
    with pytest.raises(Unreachable, match="may have an inclusion promise"):
        await four.write(3, 2)
    four.lost = lambda _sender, receiver, method: method == LENT and receiver == FOUR[1].public_key
    _, kept = await four.write(3, 3)  # what the only one keeps that does not give it has no inclusion promise
    assert kept == [with_inclusion_promise.digest]


@of_four()
async def test_an_old_leader_gets_no_inclusion_promise_and_no_commit_any_more(four: Four) -> None:
    old, _ = await four.write(0, 1)
    new, _ = await four.write(1, 2)
    contributions = everybodys(four.runs[0].log.ledger)
    with pytest.raises(NotTaken, match="another operator writes"):
        await old.store([(1, one.kept) for one in contributions])
    entries, after = four.round_for(0, contributions)
    with pytest.raises(Deposed):
        await old.write(entries, after)
    with pytest.raises(Deposed):
        await Leader(four.own_operators[0], 1).take_over()
    await new.store([(1, one.kept) for one in contributions])
    await four.commit(new, 1, contributions)
    await four.until_all_have(1, (0, 1, 2, 3))
    assert len(four.heads((0, 1, 2, 3))) == 1


@of_four()
async def test_a_round_that_does_not_come_to_what_its_leader_says_is_accepted_by_nobody_else(four: Four) -> None:
    leader, _ = await four.write(0, 1)
    contributions = await four.store(leader, 0)
    entries, after = four.round_for(0, contributions, state=bytes(32))
    committing = asyncio.create_task(leader.write(entries, after))
    await four.until_asked_again(ACCEPT, (1, 2, 3))  # each of the others refuses again and again
    assert not committing.done()
    await ended(committing)
    assert all(four.own_operators[place].store.memory.accepted == () for place in (1, 2, 3))
    assert four.heads((1, 2, 3)) == {(0, four.runs[1].log.head.root, four.runs[1].log.ledger.state)}


@of_four()
async def test_nobody_but_the_runs_operators_is_answered_and_none_of_them_in_anothers_name(four: Four) -> None:
    stranger = four.network.endpoint(PEERS[0].public_key)
    ask = pack(AskPromise(Ballot(9, PEERS[0].public_key)))
    for method in (PROMISE, KEEP):
        with pytest.raises(Refused, match="for the run's operators"):
            await stranger.call(FOUR[0].public_key, method, ask, timeout_s=10)
    other = four.network.endpoints[FOUR[1].public_key]
    with pytest.raises(Refused, match="another operator than the caller"):
        await other.call(FOUR[0].public_key, PROMISE, ask, timeout_s=10)
    for rubbish in (b"", b"\x80", ask + b"\x00", bytes(5000)):
        with pytest.raises(Refused):
            await other.call(FOUR[0].public_key, PROMISE, rubbish, timeout_s=10)
    assert four.own_operators[0].store.memory.promised.term == 0


@of_four()
async def test_of_two_that_one_key_handed_in_to_two_leaders_the_one_with_the_inclusion_promise_is_taken_up_first(four: Four) -> None:
    peer, ledger = PEERS[0], four.runs[0].log.ledger
    without, with_inclusion_promise = made(ledger, peer), made(ledger, peer, seed=1)
    old, _ = await four.write(0, 1)
    four.lost = lambda sender, _receiver, method: method == KEEP and sender == FOUR[0].public_key
    keeping = asyncio.create_task(old.store([(1, without.kept)]))
    await until(lambda: bool(four.own_operators[0].contributions.held))
    old.end()
    with pytest.raises(NotTaken):
        await keeping
    await four.kill(0)
    four.lost = lambda *_: False
    new, kept = await four.write(1, 2)
    assert kept == []
    await new.store([(1, with_inclusion_promise.kept)])
    await four.kill(1)
    await four.start(0)
    _, kept = await four.write(0, 3)
    assert kept == [with_inclusion_promise.digest, without.digest]
