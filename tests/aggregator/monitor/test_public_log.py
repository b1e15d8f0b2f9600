"""What the monitor serves below /tlog/ is what an export of the log has, file by file."""

from pathlib import Path

from manta_swarm.aggregator.log.copies import verify
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.tiles import export
from manta_swarm.aggregator.log.witnessed import Witnessed, keep_witnessed
from manta_swarm.aggregator.states.opening import OpenedRun
from manta_swarm.protocol.cosignatures import cosign, cosignatures_of
from manta_swarm.protocol.notes import head_text
from manta_swarm.protocol.signing import Identity, peer_name
from tests.aggregator.monitor.asgi import Shown, looked
from tests.aggregator.small_run import ENTRIES, PEERS, grow


def test_the_files_that_are_served_are_those_of_an_export(shown: Shown, played: tuple[Path, OpenedRun], tmp_path: Path) -> None:
    to = tmp_path / "public"
    export(played[0], to)
    served = tmp_path / "served"
    for path in (path.relative_to(to) for path in to.rglob("*") if path.is_file()):
        got = shown.get(f"/tlog/{path}")
        assert got.status == 200
        assert got.body == (to / path).read_bytes()
        assert ("immutable" in got.headers["cache-control"]) == (path.name != "checkpoint")
        (served / path).parent.mkdir(parents=True, exist_ok=True)
        (served / path).write_bytes(got.body)
    assert verify(served) == verify(to)
    assert shown.get("/tlog/witnessed").status == 404
    assert verify(served).head == shown.sight.newest_head.head  # type: ignore[union-attr]


def test_cosignatures_are_shown_with_the_head_that_they_are_of_and_the_newest_of_each_witness(
    log: Log, directory: Path, tmp_path: Path
) -> None:
    grow(log, 1)
    older = _by(log, PEERS[0])
    grow(log, 1)
    keep_witnessed(directory, [older, _by(log, PEERS[1])])
    shown = looked(directory)
    served = shown.get("/tlog/checkpoint").body.decode()
    assert [each.key for each in cosignatures_of(served)] == [PEERS[1].public_key]
    assert shown.get("/tlog/witnessed").body.decode() == served
    answer = shown.json("/api/ledger/heads")
    assert [(one["size"], one["peer"], one["signed_at"]) for one in answer["witnesses"]] == [
        (2 * ENTRIES, peer_name(PEERS[1].public_key), 1_700_000_000_000),
        (ENTRIES, peer_name(PEERS[0].public_key), 1_700_000_000_000),
    ]
    assert answer["heads"][0]["note"] == served
    to = tmp_path / "public"
    export(directory, to)
    assert (to / "checkpoint").read_text() == (to / "witnessed").read_text() == served
    grow(log, 1)
    shown.look()
    assert cosignatures_of(shown.get("/tlog/checkpoint").body.decode()) == []
    assert shown.get("/tlog/witnessed").body.decode() == served


def _by(log: Log, witness: Identity) -> Witnessed:
    return Witnessed(log.head, log.tree_head, cosign(head_text(log.head), 1_700_000_000, witness))
