"""Ctrl-C in the first moments of each program, pressed for real while a module is imported; SIGTERM in the code of a library; what is typed
that cannot be read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from manta_swarm.programs.asked_run import ending_at_sigterm
from manta_swarm.protocol.signing import Identity, peer_name

ROOT = Path(__file__).parent.parent

# Types a command, and presses Ctrl-C as soon as the module named first is looked for.
_PRESSED = """
import importlib.abc, os, signal, sys
module, program, sys.argv = sys.argv[1], sys.argv[2], sys.argv[2:]

class Presses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Presses())
import manta_swarm.programs
getattr(manta_swarm.programs, program)()
"""


def pressed(module: str, *typed: str, folder: Path, is_ignored: bool = False) -> "subprocess.CompletedProcess[str]":
    """Return how ``typed`` ended."""
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if is_ignored else ""
    return subprocess.run(
        [sys.executable, "-P", "-c", ignore + _PRESSED, module, *typed],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("program", ["peer", "aggregator", "swarm", "search"])
def test_ctrl_c_as_a_program_begins_ends_it_with_a_line(program: str, tmp_path: Path) -> None:
    ended = pressed("click", program, "--help", folder=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", f"manta-{program}: ended by Ctrl-C\n")
    assert pressed("click", program, "--help", folder=tmp_path, is_ignored=True).returncode == 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("peer", "join", "--wrong"), "manta-peer: No such option '--wrong'"),
        (("peer", "join", "--size"), "manta-peer: Option '--size' requires an argument (manta-peer"),
        (("aggregator", "wrong"), "manta-aggregator: No such command 'wrong'"),
        (("swarm", "up", "--rounds", "abc"), "manta-swarm: Invalid value for '--rounds'"),
        (("search", "export"), "manta-search: Missing option '--snapshot' (manta-search export --help says what there is)"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(typed: tuple[str, ...], said: str, tmp_path: Path) -> None:
    ended = pressed("no_such_module", *typed, folder=tmp_path)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert ended.stderr.startswith(said)


def test_a_program_alone_shows_its_help(tmp_path: Path) -> None:
    ended = pressed("no_such_module", "search", folder=tmp_path)
    assert (ended.returncode, "Usage: manta-search" in ended.stdout + ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("module", "typed"),
    [
        ("pydantic", ("peer", "join")),
        ("pydantic", ("peer", "specialise", "--latency-ms", "5")),
        ("pydantic", ("aggregator", "check", "run.toml")),
        ("pydantic", ("swarm", "up")),
        ("manta_swarm.automl.commands.space", ("search", "space")),
    ],
)
def test_ctrl_c_while_what_is_typed_is_read_ends_it_with_a_line(module: str, typed: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    ended = pressed(module, *typed, folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (130, f"manta-{typed[0]}: ended by Ctrl-C\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--peers", "203.0.113.7:31000"), "is no peer address"),
        (("--peers", f"/ip4/127.0.0.1/tcp/1/p2p/{peer_name(Identity(bytes(32)).public_key)}", "--run", "digits"), "64 hexadecimal digits"),
    ],
)
def test_a_search_by_members_refuses_a_wrong_address_before_anything_is_loaded(typed: tuple[str, ...], said: str, tmp_path: Path) -> None:
    ended = pressed("torch", "search", "find", *typed, folder=tmp_path)  # which is not looked for, or Ctrl-C would end it
    assert ended.returncode == 2
    assert said in ended.stderr
    assert not list(tmp_path.iterdir())


def _in_a_library(ending: Exception | None) -> None:
    """Be code of a library's own that is told to end in its middle, and says something else of it."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    except BaseException as error:
        raise (ending or error) from error


@pytest.mark.parametrize("ending", [None, ValueError("no shape")])
def test_sigterm_ends_a_search_by_members_also_where_a_library_makes_another_error_of_it(ending: Exception | None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, ending_at_sigterm():
        _in_a_library(ending)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(ValueError, match="of its own"), ending_at_sigterm():
        raise ValueError("of its own")
