"""What this computer says of itself, and its watts: from files of the test's own, and from the system that the tests run on."""

import os
import pty
from pathlib import Path

import pytest

from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.limits.sensors import THIS_COMPUTER, PowerMeter, Sensors, Watts, idle_of_registry, idle_of_sessions, idle_of_terminals
from manta_swarm.protocol.errors import UserError
from tests.clocks import ManualClock

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
    for limits, flag in ((Limits(when_idle=60), "--when-idle"), (Limits(max_temperature=80), "--max-temperature")):
        with pytest.raises(UserError, match=f"{flag}: this computer does not say"):
            sensors.check(limits)  # which check_join asks of the real one, before anything begins


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def zone(root: Path, name: str, called: str, energy_uj: int) -> Path:
    return write(root / "class/powercap" / name, name=called, energy_uj=energy_uj, max_energy_range_uj=262_143_328_850)


def battery(root: Path, name: str = "BAT0", **files: object) -> Path:
    return write(root / "class/power_supply" / name, type="Battery", **files)


def looked(root: Path) -> Watts:
    """Return what a second look says, two seconds after the first."""
    clock = ManualClock()
    meter = PowerMeter(root, clock)
    meter.look()
    clock.advance(2)
    return meter.look()


def test_a_computer_that_does_not_tell_is_not_guessed_at(tmp_path: Path) -> None:
    assert looked(tmp_path) == Watts(None, None)


def test_watts_of_all_processors_are_the_energy_between_two_looks_and_parts_of_one_are_not_counted_again(tmp_path: Path) -> None:
    clock = ManualClock()
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 262_143_328_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 4_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 9_000_000)  # the packages are a part of it
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)  # the same one, by another way
    meter = PowerMeter(tmp_path, clock)
    assert meter.look() == Watts()
    clock.advance(2)
    for name, energy_uj in (("0", 65_000_000), ("1", 19_999_150), ("0:0", 50_000_000), ("2", 200_000_000)):  # :1 began again at zero
        write(tmp_path / f"class/powercap/intel-rapl:{name}", energy_uj=energy_uj)
    assert meter.look().processors == pytest.approx(30 + 10)


@pytest.mark.parametrize("content", ["", "x", "12\0", "9" * 500, "-", None], ids=lambda content: repr(content)[:6])
def test_a_counter_that_says_no_number_or_is_for_root_alone_is_passed_over(tmp_path: Path, content: str | None) -> None:
    clock, path = ManualClock(), zone(tmp_path, "intel-rapl:0", "package-0", 0) / "energy_uj"
    meter = PowerMeter(tmp_path, clock)
    meter.look()
    clock.advance(1)
    if content is None:
        path.unlink()
        path.mkdir()  # what root, too, cannot read
    else:
        path.write_text(content)
    assert meter.look().processors is None


def test_a_battery_tells_what_the_whole_computer_takes_while_it_runs_on_it(tmp_path: Path) -> None:
    path = battery(tmp_path, status="Discharging", power_now=18_500_000)
    battery(tmp_path, "BAT1", status="Discharging", current_now=-500_000, voltage_now=12_000_000)
    battery(tmp_path, "hidpp_battery_0", status="Discharging", power_now=1_000_000, scope="Device")
    write(tmp_path / "class/power_supply/AC", type="Mains", online=0)
    assert looked(tmp_path).whole == pytest.approx(18.5 + 6)
    write(path, status="Charging")
    assert looked(tmp_path).whole is None
    write(path, status="Full")
    assert looked(tmp_path).whole == pytest.approx(6)


def test_a_battery_that_says_nothing_of_its_power_is_passed_over(tmp_path: Path) -> None:
    battery(tmp_path, status="Discharging", power_now=0, capacity=80)
    battery(tmp_path, "BAT1", status="Discharging", voltage_now=12_000_000)
    assert looked(tmp_path).whole is None
