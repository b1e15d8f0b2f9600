"""What the monitor serves below /tlog/ is what an export of the log has, file by file."""

from pathlib import Path

from aggregator.log.exported import verify
from aggregator.log.tiles import export
from aggregator.rounds.opening import OpenRun
from tests.aggregator.monitor.asgi import Shown


def test_the_files_that_are_served_are_those_of_an_export(shown: Shown, played: tuple[Path, OpenRun], tmp_path: Path) -> None:
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
    assert verify(served).head == shown.sight.newest_head.head  # type: ignore[union-attr]
