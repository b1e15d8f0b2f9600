"""What tests need of the machine beside Python: programs and sources, and the Debian packages that bring them.

``@pytest.mark.needs("etcd")`` says so of a test, a class or a module; ``tests/conftest.py`` looks. Where something is lacking the test is
skipped and says which package to install. With ``MANTA_REQUIRE_PROGRAMS`` in the environment, as ``.ci/run`` sets it, it fails.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

REQUIRED = "MANTA_REQUIRE_PROGRAMS"
GO_PACKAGES = Path("/usr/share/gocode")
PACKAGES = {
    "cc": "gcc",
    "chromium": "chromium",
    "etcd": "etcd-server",
    "go": "golang-go",
    str(GO_PACKAGES / "src/golang.org/x/mod"): "golang-golang-x-mod-dev",
    "ip": "iproute2",
    "iptables": "iptables",
    "systemd-analyze": "systemd",
    "tmux": "tmux",
    "unshare": "util-linux",
}


def need(*names: str) -> None:
    """End the test that runs unless the machine has all of these: programs by name, folders by path; each has a package here."""
    packages = [PACKAGES[name] for name in names if not (Path(name).is_dir() if os.path.isabs(name) else shutil.which(name))]
    if packages:
        lack(f"this needs the Debian packages {' '.join(packages)}: apt-get install {' '.join(packages)}")


def lack(reason: str) -> NoReturn:
    """End the test that runs: skipped, or failed where nothing may be lacking."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason} ({REQUIRED} is set)", pytrace=False)
    pytest.skip(reason)
