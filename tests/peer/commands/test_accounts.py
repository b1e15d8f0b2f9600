"""An account of several machines, as people type it: its key, a grant for a machine, and what becomes of it in a run."""

from pathlib import Path

from peer.cli import main
from peer.commands.accounts import grant_text, join_account, leave_account
from peer.commands.report import lines_of
from protocol.signing import peer_name
from swarm.disk import load_identity
from tests.command import typed
from tests.memory_log import PEERS, until
from tests.peer.scene import Member, Scene, play


async def counted(scene: Scene, member: Member) -> None:
    """Let the member take part in one more round, and hear what the log says."""
    round_ = scene.log.ledger.round + 1
    await scene.log.wait_for(1)
    scene.log.commit()
    await until(lambda: member.status.credit_round >= round_)


def test_a_machine_joins_an_account_and_leaves_it_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "account.key"
    assert typed(main, "account", "new", path).exit_code == 0
    account = load_identity(path).public_key

    async def story(scene: Scene) -> None:
        member = scene.join(0)
        member.store.identity_path.write_bytes(PEERS[0].to_libp2p())
        member.store.identity_path.chmod(0o600)
        await counted(scene, member)
        owners = scene.log.ledger.standing.owners
        assert owners.accounts() == {}
        join_account(member.store.directory, grant_text(path, peer_name(PEERS[0].public_key)))
        await counted(scene, member)
        await until(lambda: scene.log.extras)
        await counted(scene, member)
        assert scene.log.ledger.standing.owners.accounts() == {PEERS[0].public_key: account}
        await until(lambda: member.status.account == peer_name(account))
        member.board.write()
        assert f"it adds up to account {peer_name(account)} (as the log says)" in lines_of(member.store.directory)
        leave_account(member.store.directory)
        await counted(scene, member)
        await until(lambda: scene.log.extras)
        await counted(scene, member)
        await until(lambda: member.status.account == "")
        assert scene.log.ledger.standing.owners.accounts() == {}

    play(tmp_path, story)


def test_each_mistake_is_one_clear_line(tmp_path: Path) -> None:
    path, machine = tmp_path / "account.key", tmp_path / "machine"
    machine.mkdir()
    own = peer_name(load_identity(machine / "identity.key").public_key)
    typed(main, "account", "new", path)
    grant = typed(main, "account", "grant", own, "--key", path).output.strip()
    others = typed(main, "account", "grant", peer_name(PEERS[1].public_key), "--key", path).output.strip()
    for arguments, words in (
        (("new", path), "is there already"),
        (("grant", "nobody", "--key", path), "is no name of a peer"),
        (("grant", own, "--key", tmp_path / "missing"), "manta-peer account new"),
        (("grant", peer_name(load_identity(path).public_key), "--key", path), "the account's own name"),
        (("join", others, "--dir", machine), "this grant is for"),
        (("join", grant[:-2], "--dir", machine), "copy it whole"),
        (("join", f"{grant[:-3]}é{grant[-2:]}", "--dir", machine), "copy it whole"),
        (("join", "missing", "--dir", machine), "cannot read the grant"),
        (("join", grant, "--dir", tmp_path / "nowhere"), "there is no key in"),
        (("leave", "--dir", tmp_path / "nowhere"), "there is no key in"),
        (
            ("revoke", own, "--key", path, "--initial-peers", f"/ip4/127.0.0.1/tcp/1/p2p/{own}", "--invitation", "missing"),
            "cannot read the invitation",
        ),
    ):
        ended = typed(main, "account", *arguments)
        assert (ended.exit_code, words in ended.errors) == (2, True), ended
    assert typed(main, "account", "--dir", machine).output == f"{own} belongs to no account\n"
    (tmp_path / "grant.txt").write_text(f"{grant}\n")
    assert typed(main, "account", "join", tmp_path / "grant.txt", "--dir", machine).exit_code == 0
    assert "is to belong to account" in typed(main, "account", "--dir", machine).output
    (machine / "account").write_bytes(b"x")
    assert "is damaged" in typed(main, "account", "--dir", machine).errors
