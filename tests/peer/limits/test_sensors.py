"""What this computer says of itself, read from what its system writes; and from the system that the tests run on."""

import os
import pty
from pathlib import Path

import pytest

from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.limits.sensors import THIS_COMPUTER, Sensors, idle_of_registry, idle_of_sessions, idle_of_terminals
from manta_swarm.protocol.errors import UserError

NOW_S = 10_000.0


def test_a_terminal_that_was_typed_at_a_while_ago(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        name = Path(os.ttyname(theirs))
        if name.parent != Path("/dev/pts"):
            pytest.skip("terminals are elsewhere on this system")
        os.utime(name, (NOW_S - 500, NOW_S))
        found = idle_of_terminals([name.parent], NOW_S)
        assert found is not None
        assert found <= 500  # others may be open
    finally:
        os.close(ours)
        os.close(theirs)
    (tmp_path / "0").touch()  # no terminal
    assert idle_of_terminals([tmp_path, tmp_path / "nowhere"], NOW_S) is None


def session(**said: str) -> str:
    return "\n".join(f"{key}={value}" for key, value in said.items())


@pytest.mark.parametrize(
    ("sessions", "idle_s"),
    [
        (None, None),
        ([], NOW_S),
        ([session(Type="wayland", State="active", IdleHint="yes", IdleSinceHintMonotonic="9400000000")], 600.0),
        ([session(Type="x11", State="active", IdleHint="no", IdleSinceHintMonotonic="0")], 0.0),
        ([session(Type="x11", State="online", IdleHint="yes", IdleSinceHintMonotonic="no number")], 0.0),
        ([session(Type="x11", State="closing", IdleHint="no")], NOW_S),
        ([session(Type="tty", State="active", IdleHint="no")], NOW_S),  # looked at as a terminal
        (["", "nonsense"], NOW_S),
    ],
)
def test_screens_as_systemd_tells_of_them(sessions: list[str] | None, idle_s: float | None) -> None:
    assert idle_of_sessions(sessions, NOW_S) == idle_s


def test_a_mac_s_keyboard_and_mouse() -> None:
    assert idle_of_registry('    | |   "HIDIdleTime" = 12500000000\n') == 12.5
    assert idle_of_registry("nothing") is None
    assert idle_of_registry(None) is None


def test_this_computer_tells_the_time_and_whether_it_is_on_battery() -> None:
    now = THIS_COMPUTER.read(Limits(on_ac=True, when_idle=60, max_temperature=80))
    assert 0 <= now.minute < 24 * 60
    assert now.on_battery in (True, False, None)
    assert now.idle_s is None or now.idle_s >= 0
    assert now.celsius is None or -50 < now.celsius < 150


def test_a_system_that_refuses_a_reading_does_not_know_it() -> None:
    class Refused(Sensors):
        def idle_s(self) -> float:
            raise PermissionError("no")

        def celsius(self) -> float:
            raise PermissionError("no")

    sensors = Refused()
    assert sensors.read(Limits(when_idle=60)).idle_s is None
    with pytest.raises(UserError, match="--max-temperature: this computer does not say"):
        sensors.check(Limits(max_temperature=80))
