"""How many watts this computer takes, where it tells: its processors by their own counters (Linux's powercap), or all of it on its battery.

The counters of most kernels are for root alone; where they cannot be read, nothing is said. Nothing is written, and no file is read for
more than a number's length.
"""

from dataclasses import dataclass
from pathlib import Path

from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

_MAX_ZONES = 64  # of processors, and supplies
_MAX_CHARACTERS = 64  # of a number or a name
_MAX_WATTS = 10_000.0  # whatever is more was no reading


@dataclass(frozen=True, slots=True)
class Watts:
    """What a computer says that it takes; None: it does not say."""

    processors: float | None = None
    whole: float | None = None  # while it runs on its battery


class PowerMeter:
    """Looks again and again; a processor's watts are the mean since the look before."""

    def __init__(self, root: Path = Path("/sys"), clock: Clock = SYSTEM_CLOCK) -> None:
        """Look under ``root``."""
        self._root = root
        self._clock = clock
        self._before: dict[str, tuple[float, int]] = {}  # by zone: when its counter was read, and what it said, microjoules

    def look(self) -> Watts:
        """Return what is known now; of the processors nothing at the first look."""
        return Watts(self._processors(), self._whole())

    def _processors(self) -> float | None:
        """Return the watts of all processors, which are zones ``intel-rapl:N`` with the name package-N, of AMD's too."""
        found = [watts for zone in _folders(self._root / "class/powercap", "intel-rapl:*") if (watts := self._zone(zone)) is not None]
        return sum(found) if found else None

    def _zone(self, zone: Path) -> float | None:
        if zone.name.count(":") != 1 or not (_text(zone / "name") or "").startswith("package"):
            return None  # a part of a package, or what has the package as a part
        energy_uj, now_s = _number(zone / "energy_uj"), self._clock.now_s()
        if energy_uj is None:
            return None
        before = self._before.get(zone.name)
        self._before[zone.name] = now_s, energy_uj
        if before is None or now_s <= before[0]:
            return None
        used_uj = energy_uj - before[1]
        if used_uj < 0:  # it began again at zero
            used_uj += _number(zone / "max_energy_range_uj") or 0
        watts = used_uj / 1e6 / (now_s - before[0])
        return watts if 0 <= watts <= _MAX_WATTS else None

    def _whole(self) -> float | None:
        """Return the watts that batteries give; while one is charged they say nothing of what the computer takes."""
        found = []
        for supply in _folders(self._root / "class/power_supply", "*"):
            if _text(supply / "type") != "Battery" or _text(supply / "scope") == "Device":  # that of a mouse
                continue
            status = _text(supply / "status")
            if status == "Charging":
                return None
            if status == "Discharging" and (watts := _discharge(supply)) is not None:
                found.append(watts)
        return sum(found) if found else None


def _discharge(supply: Path) -> float | None:
    power_uw = _number(supply / "power_now")
    if power_uw is None:
        current_ua, voltage_uv = _number(supply / "current_now"), _number(supply / "voltage_now")
        if current_ua is None or voltage_uv is None:
            return None
        power_uw = current_ua * voltage_uv // 10**6
    watts = abs(power_uw) / 1e6  # some drivers write what is given as less than nothing
    return watts if 0 < watts <= _MAX_WATTS else None


def _folders(folder: Path, form: str) -> list[Path]:
    try:
        return sorted(folder.glob(form))[:_MAX_ZONES]
    except OSError:
        return []


def _text(path: Path) -> str | None:
    """Return what a small file says; None: it is not there, or not for everybody."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_CHARACTERS).decode("ascii", "replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.removeprefix("-").isdecimal() and text.isascii() else None
