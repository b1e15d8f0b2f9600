"""The README's picture of the monitor: taken by this computer's own Chromium of a real swarm that this starts.

Needs Chromium (``MANTA_CHROMIUM`` says where, if the path does not) and playwright, which is in the extra ``dev``.
Run it from the repository: ``.venv/bin/python benchmarks/monitor_picture.py --help``.
"""

import argparse
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
WAIT_MS = 600_000
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAX_BYTES = 150_000


def parse() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description="Take the README's picture of the monitor.")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "monitor.webp", help="where the picture goes, WebP")
    parser.add_argument("--address", help="of the monitor of a run that goes on already; else a swarm is started")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--cohorts", type=int, default=2)
    parser.add_argument("--after", type=int, default=60, help="rounds that have to be over")
    parser.add_argument("--width", type=int, default=1200, help="of the page, pixels")
    parser.add_argument("--height", type=int, default=1230, help="of what is taken of it, pixels")
    parser.add_argument("--colours", choices=("light", "dark"), default="light")
    return parser.parse_args()


def start_swarm(settings: argparse.Namespace, directory: Path) -> "subprocess.Popen[str]":
    """Start a swarm that would go on for much longer than it has to."""
    size = ("--peers", str(settings.peers), "--cohorts", str(settings.cohorts), "--rounds", str(10 * settings.after))
    command = [sys.executable, "-P", "-m", "manta_swarm.aggregator.local.cli", "up", "--dir", str(directory), *size]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def address_of(swarm: "subprocess.Popen[str]") -> str:
    """Return the monitor's address, which the swarm prints."""
    assert swarm.stdout is not None
    printed = []
    for line in swarm.stdout:
        printed.append(line)
        found = re.search(r"watch it at (http://\S+)", line)
        if found:
            return found[1]
    raise SystemExit(f"the swarm ended before it said where its monitor is:\n{''.join(printed)}")


def picture(api: Any, address: str, settings: argparse.Namespace) -> bytes:
    """Return a PNG of the page once enough rounds are over, the newest of them evaluated."""
    path = os.environ.get("MANTA_CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("no Chromium on this computer: install one, or say where it is with MANTA_CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = browser.new_page(viewport={"width": settings.width, "height": settings.height}, color_scheme=settings.colours)
        page.goto(address)
        over = "(after) => Number(document.getElementById('progress').getAttribute('aria-valuenow')) >= after"
        page.wait_for_function(over, arg=settings.after, timeout=WAIT_MS)
        page.locator("#curve canvas").wait_for(timeout=WAIT_MS)
        page.locator("#swarm-glance .dot.gave").first.wait_for(timeout=WAIT_MS)
        taken: bytes = page.screenshot()
        browser.close()
    return taken


def compressed(png: bytes) -> bytes:
    """Return the picture as WebP, as good as fits into a README."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    for quality in (92, 85, 75, 60):
        target = io.BytesIO()
        image.save(target, "WEBP", quality=quality, method=6)
        if target.tell() < MAX_BYTES:
            break
    return target.getvalue()


def main() -> None:
    """Take the picture."""
    settings = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the swarm ends with this
    from playwright import sync_api

    if settings.address:
        taken = compressed(picture(sync_api, settings.address, settings))
    else:
        with tempfile.TemporaryDirectory(prefix="manta-picture-") as folder:
            swarm = start_swarm(settings, Path(folder) / "swarm")
            try:
                taken = compressed(picture(sync_api, address_of(swarm), settings))
            finally:
                swarm.send_signal(signal.SIGINT)
                swarm.communicate(timeout=120)
    settings.out.write_bytes(taken)
    print(f"{settings.out}: {len(taken)} bytes")


if __name__ == "__main__":
    main()
