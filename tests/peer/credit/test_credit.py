"""What a peer knows of its credit: the log's word, and what it computes itself from the claims; and what of it outlives the program."""

from manta_swarm.peer.commands.report import lines_of
from manta_swarm.peer.credit.credit import Credit
from manta_swarm.protocol.records import Header, entry_of, open_entry
from manta_swarm.protocol.signing import Identity
from tests.memory_log import PEERS, until
from tests.peer.scene import Member, Scene


def owned(scene: Scene, identity: Identity) -> int:
    return scene.log.ledger.credits().get(identity.public_key, 0)


async def rounds(scene: Scene, member: Member, count: int) -> None:
    """Let the member and somebody else take part in so many rounds."""
    for _ in range(count):
        round_ = scene.log.ledger.round + 1
        scene.log.give(PEERS[3], seed=round_)
        await scene.log.wait_for(2)
        scene.log.commit()
        await until(lambda round_=round_: member.status.earned_round == round_)


async def test_a_peer_computes_what_each_round_paid_it_and_shows_it_as_checked(scene: Scene) -> None:
    member = scene.join(0)
    await rounds(scene, member, 3)
    status, pool = member.status, scene.log.manifest.reward_pool
    assert status.credit == status.credit_checked == owned(scene, member.identity)
    assert (status.credit_round, status.credit_rounds, status.earned_checked, status.credit_fault) == (3, 3, True, "")
    assert 0 < status.earned < pool  # the rest is the other one's
    await member.leaves()
    member.live_status.write()
    assert f"credit: {status.credit:,} up to round 3 (checked: computed here from the claims in the log)" in lines_of(
        member.store.directory
    )


async def test_what_was_earned_and_checked_is_known_again_after_a_restart_and_nothing_is_added_twice(scene: Scene) -> None:
    member = scene.join(0)
    await rounds(scene, member, 2)
    member.task.cancel()
    await until(member.task.done)
    scene.log.go_away()
    again = scene.join(0)
    await until(lambda: again.status.credit is not None)
    assert (again.status.credit, again.status.credit_rounds) == (member.status.credit, 2)
    scene.log.come_back()
    await rounds(scene, again, 1)
    assert again.status.credit == again.status.credit_checked == owned(scene, again.identity)
    assert again.status.credit_rounds == 3


async def test_where_nothing_is_kept_the_log_says_what_the_key_has_earned_and_that_is_not_called_checked(scene: Scene) -> None:
    member = scene.join(0)
    await rounds(scene, member, 2)
    await member.leaves()
    for path in (member.store.directory / "runs").rglob("credit"):
        path.unlink()
    again = scene.join(0)
    await until(lambda: again.status.credit is not None)
    assert again.status.credit == owned(scene, again.identity)
    assert again.status.credit_rounds < 2  # what was signed is handed in once more, and its round found to be counted
    await again.leaves()
    again.live_status.write()
    assert any("as the log says;" in line for line in lines_of(again.store.directory))


async def test_a_log_that_says_another_credit_than_its_claims_come_to_is_told_on(scene: Scene) -> None:
    member = scene.join(0)
    scene.log.pays_more = 7
    await rounds(scene, member, 1)
    assert member.status.earned == owned(scene, member.identity)  # not the log's word
    assert "in round 1, and its claims come to" in member.status.credit_fault
    await member.leaves()
    member.live_status.write()
    assert any(line.startswith("credit is in doubt:") for line in lines_of(member.store.directory))


async def test_claims_that_are_not_the_tables_count_for_nothing(scene: Scene) -> None:
    member = scene.join(0)

    def swap(entry: bytes) -> bytes:
        header = open_entry(entry)
        assert isinstance(header, Header)
        is_own = header.contribution.open().founder == member.key
        return entry if is_own else entry_of(scene.log.headers[0])

    scene.log.shows = swap
    await rounds(scene, member, 1)
    status = member.status
    assert (status.earned_checked, status.credit_rounds, status.credit_checked) == (False, 0, 0)
    assert status.earned == status.credit == owned(scene, member.identity)  # the log's word, and called that


async def test_a_round_whose_claims_are_dear_beside_its_mean_stays_the_logs_word(scene: Scene) -> None:
    def cheap_means(member: Member) -> None:
        credit: Credit = member.loop._credit
        credit._mean_bytes = 0

    member = scene.join(0, prepare=cheap_means)
    await rounds(scene, member, 1)
    assert (member.status.earned_checked, member.status.credit_rounds) == (False, 0)
    assert member.status.credit == owned(scene, member.identity) > 0


async def test_a_damaged_file_is_passed_over(scene: Scene) -> None:
    member = scene.join(0)
    await rounds(scene, member, 1)
    await member.leaves()
    for path in (member.store.directory / "runs").rglob("credit"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    again = scene.join(0)
    await rounds(scene, again, 1)
    assert again.status.credit == owned(scene, again.identity)
    assert 0 < again.status.credit_checked <= again.status.credit
