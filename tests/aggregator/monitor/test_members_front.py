"""The front that the run's members measured, as the monitor gives it."""

from pathlib import Path

from manta_swarm.aggregator.features.front_file import FILE, FrontPoint, MembersFront
from manta_swarm.aggregator.log.log import Log
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.runtime.disk import make_directory, replace_file
from tests.aggregator.monitor.asgi import live_of, looked, write_live


def test_the_front_that_members_measured_is_shown_and_a_damaged_file_is_said_and_hides_nothing(log: Log, directory: Path) -> None:
    write_live(directory, live_of())
    shown = looked(directory)
    nothing = shown.json("/api/members-front")
    assert (nothing["round"], nothing["points"]) == (None, [])
    points = tuple(FrontPoint(text=TINY.smallest().text, macs=macs, loss=100 / macs, accuracy=macs / 1000) for macs in (200, 300))
    names = tuple(f"liar {number}" for number in range(30))
    front = MembersFront(round=7, state="ab", measured=48, members=3, samples=177, not_believed=names, front=points)
    path = directory / "snapshots" / FILE
    make_directory(path.parent)
    replace_file(path, front.model_dump_json().encode())
    shown.look()
    found = shown.json("/api/members-front")
    assert found.items() >= {"round": 7, "measured": 48, "members": 3, "samples": 177, "not_believed": list(names[:20])}.items()
    assert found["points"] == [
        {"text": TINY.smallest().text, "macs": 200, "quality": 0.2, "loss": 0.5},
        {"text": TINY.smallest().text, "macs": 300, "quality": 0.3, "loss": 1 / 3},
    ]
    replace_file(path, b'{"format": "manta/front/v2"}')
    for _ in range(2):  # it stays said
        shown.look()
        assert shown.json("/api/members-front") == found
        (alarm,) = shown.json("/api/now")["alarms"]
        assert (alarm["kind"], alarm["level"]) == ("unreadable", "warning")
        assert alarm["text"].endswith("front.json is damaged, or of another version")
