"""Reads the computer's state: time of day, power supply and watts, idle time of its user, temperatures, and what NVIDIA's driver says.

Watts are those of the processors by their own counters (Linux's powercap), or of all the computer on its battery. The counters of most
kernels are for root alone; where they cannot be read, nothing is said. Nothing is written, and no file is read for more than a number's
length.
"""

import functools
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from manta_swarm.peer.limits.limits import Limits, Readings
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

Reading = TypeVar("Reading")

_PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "amdgpu")  # what drivers call them
_ANY_ZONE = "acpitz"  # where nothing better is known
_ANSWER_S = 5.0  # for another program to say what it knows
_TERMINALS = (Path("/dev/pts"), Path("/dev"))
_DESKTOPS = Path("/tmp/.X11-unix")

_MAX_ZONES = 64  # of processors, and supplies
_MAX_CHARACTERS = 64  # of a number or a name
_MAX_WATTS = 10_000.0  # whatever is more was no reading


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, by its index at the driver; None: it does not say."""

    name: str
    celsius: float | None
    watts: float | None
    memory_bytes: int | None
    memory_used_bytes: int | None  # by all programs


def driver() -> str | None:
    """Return the driver's version; None: there is no driver."""
    library = _library()
    version: str | None = None if library is None else _answer(library, library.nvmlSystemGetDriverVersion)
    return version


def gpus() -> list[Gpu]:
    """Return the GPUs of this computer in the driver's order."""
    library = _library()
    if library is None:
        return []
    count = _answer(library, library.nvmlDeviceGetCount) or 0
    devices = [_answer(library, library.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    return [_gpu(library, device) for device in devices if device is not None]


@functools.cache
def _library() -> Any:
    """Return pynvml, ready for questions; None: there is no driver. It stays ready until the process ends."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _answer(library: Any, question: Callable[..., Any], *about: Any) -> Any:
    try:
        return question(*about)
    except library.NVMLError:  # an old driver, or a GPU that does not measure it
        return None


def _gpu(library: Any, device: Any) -> Gpu:
    celsius = _answer(library, library.nvmlDeviceGetTemperature, device, library.NVML_TEMPERATURE_GPU)
    milliwatts = _answer(library, library.nvmlDeviceGetPowerUsage, device)
    memory = _answer(library, library.nvmlDeviceGetMemoryInfo, device)
    return Gpu(
        _answer(library, library.nvmlDeviceGetName, device) or "a GPU",
        None if celsius is None else float(celsius),
        None if milliwatts is None else milliwatts / 1000,
        None if memory is None else int(memory.total),
        None if memory is None else int(memory.used),
    )


class Sensors:
    """Reads this computer's state; a test overrides that."""

    def minute(self) -> int:
        """Return the minute of this computer's day, by its own time zone."""
        now = time.localtime()
        return 60 * now.tm_hour + now.tm_min

    def on_battery(self) -> bool | None:
        """Return whether this computer runs on its battery; one without a battery does not."""
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        if battery is None:
            return False
        return None if battery.power_plugged is None else not battery.power_plugged

    def idle_s(self) -> float | None:
        """Return for how many seconds nobody has used this computer."""
        return unused_s()

    def celsius(self) -> float | None:
        """Return how hot this computer is."""
        return hottest()

    def read(self, limits: Limits) -> Readings:
        """Return what these limits ask for, and nothing else: some of it costs time."""
        return Readings(
            self.minute(),
            _known(self.on_battery) if limits.on_ac else False,
            _known(self.idle_s) if limits.when_idle is not None else None,
            _known(self.celsius) if limits.max_temperature is not None else None,
        )

    def check(self, limits: Limits) -> None:
        """Refuse limits that this computer cannot keep, because it does not say what they ask for.

        Raises:
            UserError: one of them.
        """
        now = self.read(limits)
        if limits.when_idle is not None and now.idle_s is None:
            raise UserError("--when-idle: this computer does not say whether somebody uses it; leave it out, or give a --schedule")
        if limits.on_ac and now.on_battery is None:
            raise UserError("--on-ac: this computer does not say whether it is on battery; leave it out")
        if limits.max_temperature is not None and now.celsius is None:
            raise UserError("--max-temperature: this computer does not say how hot it is; leave it out, or give a --duty")


def _known(reading: Callable[[], Reading | None]) -> Reading | None:
    """Return a reading; None where the system refuses it: that is not known, then."""
    try:
        return reading()
    except (OSError, psutil.Error):
        return None


def hottest() -> float | None:
    """Return the temperature of the hottest processor or GPU, degrees Celsius."""
    zones = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    named = [zone.current for name in _PROCESSORS for zone in zones.get(name, ())] or [zone.current for zone in zones.get(_ANY_ZONE, ())]
    found = [each for each in (*named, *(gpu.celsius for gpu in gpus())) if each is not None]
    return max(found) if found else None


def unused_s() -> float | None:
    """Return for how many seconds nobody has used this computer: at its screen, at a terminal, or from afar at one."""
    if sys.platform == "darwin":
        return idle_of_registry(_said("ioreg", "-c", "IOHIDSystem", "-d", "4"))
    at_terminals = idle_of_terminals(_TERMINALS, time.time())
    at_screens = idle_of_sessions(_sessions(), time.monotonic())
    if at_screens is None and _DESKTOPS.is_dir() and any(_DESKTOPS.iterdir()):
        return None  # there is a screen, and nobody to ask who sits there
    known = [each for each in (at_terminals, at_screens, time.time() - psutil.boot_time()) if each is not None]
    return max(0.0, min(known))


def idle_of_terminals(folders: Iterable[Path], now_s: float) -> float | None:
    """Return for how long nobody typed at any terminal in these folders; None: there is none."""
    typed_s = []
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if re.fullmatch(r"[0-9]+|tty[0-9]+", entry.name) and stat.S_ISCHR(entry.stat().st_mode):
                        typed_s.append(entry.stat().st_atime)  # of the last byte that a program read there
        except OSError:
            continue  # there is no such folder, or a terminal was closed a moment ago
    return None if not typed_s else now_s - max(typed_s)


def idle_of_sessions(sessions: Iterable[str] | None, now_s: float) -> float | None:
    """Return for how long nobody used any screen, as systemd's sessions say in lines ``Key=value``; None: nobody says.

    A desktop tells of idleness once it has lasted for as long as it is set to; before that somebody is there.
    """
    if sessions is None:
        return None
    idle = []
    for session in sessions:
        said = dict(line.split("=", 1) for line in session.splitlines() if "=" in line)
        if said.get("Type") in ("x11", "wayland", "mir") and said.get("State") != "closing":
            since = said.get("IdleSinceHintMonotonic", "0")
            is_idle = said.get("IdleHint") == "yes" and since.isdecimal()
            idle.append(now_s - int(since) / 1e6 if is_idle else 0.0)
    return min(idle, default=now_s)


def idle_of_registry(said: str | None) -> float | None:
    """Return for how long nobody touched keyboard or mouse, as macOS's ``ioreg`` says."""
    found = re.search(r'"HIDIdleTime"\s*=\s*([0-9]+)', said or "")
    return None if found is None else int(found[1]) / 1e9


def _sessions() -> list[str] | None:
    listed = _said("loginctl", "--no-pager", "--no-legend", "list-sessions")
    if listed is None:
        return None
    keys = ("Type", "State", "IdleHint", "IdleSinceHintMonotonic")
    properties = [word for key in keys for word in ("-p", key)]
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    return [_said("loginctl", "--no-pager", "show-session", name, *properties) or "" for name in names]


def _said(*command: str) -> str | None:
    """Return what a program of this computer prints; None: it is not there, or fails."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        ended = subprocess.run([program, *command[1:]], capture_output=True, stdin=subprocess.DEVNULL, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.decode("utf-8", "replace") if ended.returncode == 0 else None


THIS_COMPUTER = Sensors()


@dataclass(frozen=True, slots=True)
class Watts:
    """The watts that a computer says it takes; None: it does not say."""

    processors: float | None = None
    whole: float | None = None  # while it runs on its battery


class PowerMeter:
    """Reads watts again and again; a processor's are the mean since the reading before."""

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
