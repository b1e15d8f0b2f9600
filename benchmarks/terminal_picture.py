"""Makes docs/terminal.svg, a picture of the dashboard, from a real run: an aggregator and four peers on this computer.

python benchmarks/terminal_picture.py [--rounds N]: N rounds are trained before the picture is taken.
"""

import argparse
import asyncio
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from manta_swarm.peer.control import look
from manta_swarm.peer.dashboard.dashboard import Dashboard
from manta_swarm.protocol.errors import MantaError

_OUT = Path(__file__).parents[1] / "docs" / "terminal.svg"
_SIZE = (100, 30)
_DEADLINE_S = 300.0
_LOOK_S, _LEAST_LOOKS, _LOOKS = 0.3, 10, 200
_WORDS = """ role="img" aria-labelledby="title desc">
    <title id="title">manta-peer dashboard</title>
    <desc id="desc">A terminal: the peer trains; bars of the run and the round; what this peer gave and the log counted, who takes part,
    traffic, and what the computer says of itself; the last lines that the peer said; the keys.</desc>"""
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # of another site: who looks at the picture asks nobody else


def wait_for_round(directory: Path, rounds: int) -> None:
    """Return once the peer of ``directory`` holds that round and trains."""
    end_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end_s:
        try:
            if look(directory).round >= rounds:
                return
        except MantaError:  # not yet
            pass
        time.sleep(0.5)
    raise SystemExit(f"no peer in {directory} came to round {rounds}")


async def take(directory: Path) -> str:
    """Return the dashboard of the peer of ``directory`` as SVG, at a moment at which it trains and its rates are known."""
    async with Dashboard(directory).run_test(size=_SIZE) as pilot:
        for look in range(_LOOKS):
            await pilot.pause(_LOOK_S)
            picture = pilot.app.export_screenshot(title="manta-peer dashboard")
            if look >= _LEAST_LOOKS and "TRAINING" in picture:
                return _FONTS.sub("", picture).replace(">", _WORDS, 1)
    raise SystemExit(f"the peer in {directory} was never seen at work")


def main() -> None:
    """Start a run, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "-P",
            "-m",
            "manta_swarm.aggregator.local.cli",
            "up",
            "--no-monitor",
            "--dir",
            f"{folder}/run",
            "--rounds",
            str(20 * rounds),
        ]
        swarm = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            peer = Path(folder, "run", "peer-0")
            wait_for_round(peer, rounds)
            _OUT.write_text(asyncio.run(take(peer)))
        finally:
            swarm.send_signal(signal.SIGINT)
            swarm.wait()
    print(f"{_OUT}: {_OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
