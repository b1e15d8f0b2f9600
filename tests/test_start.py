"""What a person types wrong is told before anything heavy is loaded: in each program what it imported is counted.

Help is asked of programs that are started for real; mistakes are made in forks of a process that has loaded what is light.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from manta_swarm.network.invitation import Token
from manta_swarm.protocol.admission import GUEST, Invitation
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, peer_name
from manta_swarm.runtime.disk import load_identity
from tests.forked import ForkServer

DATA_AND_FILES = {"torchvision", "sklearn", "skimage", "scipy", "matplotlib", "PIL", "onnx", "onnxscript", "onnxruntime"}
HEAVY = frozenset({"torch", "hivemind", "starlette", "uvicorn", "dp_accounting"} | DATA_AND_FILES)
NOT_FOR_HELP = HEAVY | {"numpy", "pydantic", "rich", "textual"}
PROGRAMS = ("manta_swarm.peer.cli", "manta_swarm.aggregator.cli", "manta_swarm.aggregator.local.cli", "manta_swarm.automl.cli")
ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "formats" / "0.1.0" / "log"  # a run's folder, without its key
NODE = f"/ip4/127.0.0.1/tcp/1/p2p/{peer_name(Identity(bytes(32)).public_key)}"
_KEY = Identity(bytes(32))
GUESTS = Token(Signed.sign(Invitation(bytes(32), _KEY.public_key, _KEY.public_key, 1, 1, GUEST), _KEY), bytes(32)).to_text()

LIGHT = (
    *PROGRAMS,
    "numpy.random",
    "manta_swarm.peer.config",
    "manta_swarm.aggregator.settings.config",
    "manta_swarm.aggregator.log.verify",
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended, what it said, and what it had imported by then."""

    exit_code: int
    said: str
    imported: frozenset[str]


@pytest.fixture(scope="module")
def light() -> Iterator[ForkServer | None]:
    """What programs are forked from: it has loaded what is light, and a fork would tell of anything else. None: they start for real."""
    if sys.platform != "linux":
        yield None
        return
    with closing(ForkServer(LIGHT)) as server:
        yield server


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is typed in, with files that are not what they should be."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "garbage").write_text("garbage")
    (here / "run.toml").write_text("")
    (here / "unknown-key.toml").write_text("[run]\nronds = 5\n")
    (here / "overflow.toml").write_text("[exchange]\nmax_rows = 1024\n")
    (here / "other-task.toml").write_text('[data]\nsupernet = "stereo-tiny"\n')
    (here / "flowers.toml").write_text('[data]\ndataset = "folder-flowers"\n')
    (here / "settings").mkdir()
    (here / "settings" / "peer.toml").write_text("gpu = 1\n")
    (here / "old.safetensors").write_text("somebody's")
    shutil.copytree(KEPT, here / "kept", ignore=shutil.ignore_patterns("identity.key"))
    for name in ("garbled", "readable"):
        (here / name).mkdir(mode=0o700)
        load_identity(here / name / "identity.key")
    (here / "garbled" / "identity.key").write_bytes(b"garbage")
    (here / "readable" / "identity.key").chmod(0o644)
    for name in [name for name in os.environ if name.startswith("MANTA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("MANTA_STATE_DIR", str(here / "state"))
    monkeypatch.chdir(here)
    return here


def run(light: ForkServer | None, folder: Path, *typed: str) -> Ended:
    """Return how a program ended; ``folder`` is for what it says and has imported."""
    log, imported = folder / "log", folder / "imported.json"
    command = ["tests.counted", str(imported), *typed]
    if light is None:
        with log.open("wb") as file:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            start = [sys.executable, "-P", "-m", *command]
            code = subprocess.run(start, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, timeout=300).returncode
    else:
        code = light.start(command, log, {}).wait(timeout=300)
    return Ended(code, log.read_text(), frozenset(json.loads(imported.read_text())))


def commands(module: str) -> Iterator[tuple[str, ...]]:
    """Yield every command of a program, as it is typed."""

    def walk(command: click.Command, typed: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield typed
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                inner = command.get_command(click.Context(command), name)
                assert inner is not None
                yield from walk(inner, (*typed, name))

    yield from walk(importlib.import_module(module).main, ())


# Types one line after the other in one process, and says of each how it ended and what was imported by then.
_ALL = """
import contextlib, importlib, io, json, sys
main = importlib.import_module(sys.argv[1]).main
ended = []
for typed in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(typed)
        except SystemExit as end:
            ended.append((end.code, said.getvalue(), sorted({name.partition(".")[0] for name in sys.modules})))
print(json.dumps(ended))
"""


@pytest.mark.parametrize("module", PROGRAMS)
def test_help_and_a_wrong_flag_are_told_before_anything_is_loaded(module: str) -> None:
    unwanted = HEAVY if module == "manta_swarm.automl.cli" else NOT_FOR_HELP
    known = list(commands(module))
    typed = [[*command, flag] for flag in ("--help", "--wrong-flag") for command in known]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _ALL, module], input=json.dumps(typed), capture_output=True, text=True, timeout=300, check=True
    )
    for words, (exit_code, said, imported) in zip(typed, json.loads(ran.stdout), strict=True):
        assert unwanted.isdisjoint(imported), words
        assert (exit_code, said.splitlines()[0].split(" ")[0]) == ((0 if "--help" in words else 2), "Usage:"), words
        assert "--wrong-flag" not in words or "--wrong-flag" in said, words


PEER = ("manta_swarm.peer.cli", "join", "--initial-peers", NODE, "--dir", "new")
START = ("manta_swarm.aggregator.cli", "start")
OUTSIDE = ("manta_swarm.aggregator.cli", "ledger", "verify", "--from")
FIND = ("manta_swarm.automl.cli", "find", "--snapshot")
MISTAKES = [
    # An address.
    (("manta_swarm.peer.cli", "join", "--initial-peers", "203.0.113.7:31000"), "is no peer address"),
    (("manta_swarm.peer.cli", "join", "--initial-peers", NODE[:-1]), "is no peer address"),
    (("manta_swarm.peer.cli", "join"), "no run was found"),
    ((*PEER, "--run", "digits"), "64 hexadecimal digits"),
    ((*PEER, "--listen", "0.0.0.0:31000"), "cannot listen on"),
    ((*PEER, "--listen", "/ip4/203.0.113.7/tcp/9"), "cannot listen on"),
    ((*PEER, "--data-limit", "much"), "--data-limit: takes a size, as 6GB or 800MB"),
    ((*PEER, "--gateway", "8080"), "give HOST:PORT"),
    ((*PEER, "--gateway", "no..name:8080"), "no such name can be"),
    (("manta_swarm.peer.cli", "join", "--light", "--gateway", "127.0.0.1:80"), "give the URL"),
    (("manta_swarm.peer.cli", "tables", "--out", "tables", "--initial-peers", "nonsense"), "is no peer address"),
    (("manta_swarm.peer.cli", "doctor", "--initial-peers", "nonsense"), "is no peer address"),
    (("manta_swarm.peer.cli", "about", "--initial-peers", "nonsense"), "is no peer address"),
    ((*START, "run.toml", "--dir", "new", "--listen", "127.0.0.1:31000"), "cannot listen on"),
    # What is not there.
    ((*PEER, "--latency-table", "missing.json"), "cannot read missing.json"),
    ((*PEER, "--private-data", "missing"), "cannot read missing"),
    ((*PEER, "--data-root", "missing"), "is no folder"),
    ((*PEER, "--gateway", "127.0.0.1:0", "--gateway-cert", "missing.pem", "--gateway-key", "missing.pem"), "No such file"),
    (("manta_swarm.peer.cli", "status", "--dir", "missing"), "no peer ever ran"),
    (("manta_swarm.peer.cli", "dashboard", "--dir", "missing"), "no peer runs"),
    (("manta_swarm.peer.cli", "pause", "--dir", "missing"), "no peer runs"),
    (("manta_swarm.peer.cli", "resume", "--dir", "missing"), "no peer runs"),
    (("manta_swarm.peer.cli", "leave", "--dir", "missing"), "no peer runs"),
    (("manta_swarm.peer.cli", "identity", "--dir", "missing"), "there is no key"),
    (("manta_swarm.peer.cli", "identity", "backup", "copy", "--dir", "missing"), "there is no key"),
    (("manta_swarm.peer.cli", "identity", "restore", "missing", "--dir", "new"), "cannot read missing"),
    (("manta_swarm.peer.cli", "service", "install", "--dir", "settings"), "'gpu' is not a key"),
    ((*START, "missing.toml", "--dir", "new"), "there is no run file"),
    ((*START, "flowers.toml", "--dir", "new"), "--data-root"),
    ((*START, "run.toml", "--dir", "new", "--first-state", "missing"), "missing is no snapshot"),
    (("manta_swarm.aggregator.cli", "check", "flowers.toml"), "--data-root"),
    ((*START, "flowers.toml", "--dir", "new", "--data-root", "."), "cannot read flowers"),
    (("manta_swarm.aggregator.cli", "init", "missing/run.toml"), "cannot write"),
    (("manta_swarm.aggregator.cli", "init", "run.toml"), "exists already"),
    (("manta_swarm.aggregator.cli", "ledger", "verify", "--dir", "missing"), "holds no log"),
    (("manta_swarm.aggregator.cli", "ledger", "verify"), "give --dir DIR, a run's folder, or --from URL"),
    (("manta_swarm.aggregator.cli", "ledger", "verify", "--dir", "kept", "--run", "0" * 64), "--run and --key say which log"),
    ((*OUTSIDE, "elsewhere/tlog/"), "is no address of a log"),
    ((*OUTSIDE, "http://127.0.0.1:1/tlog/"), "cannot be had (Connection refused)"),
    ((*OUTSIDE, "http://127.0.0.1:1/tlog/", "--run", "digits"), "64 hexadecimal digits"),
    ((*OUTSIDE, "http://127.0.0.1:1/tlog/", "--key", "me"), "give an operator's key"),
    ((*OUTSIDE, "http://127.0.0.1:1/tlog/", "--dir", "kept"), "a run's own folder"),
    ((*OUTSIDE, "http://127.0.0.1:1/tlog/", "--dir", "settings"), "no log that was fetched"),
    (("manta_swarm.aggregator.cli", "ledger", "export", "new", "--dir", "missing"), "holds no log"),
    (("manta_swarm.aggregator.cli", "ledger", "check-export", "missing"), "is no exported log"),
    (("manta_swarm.aggregator.cli", "ledger", "replay", "--dir", "missing"), "holds no log"),
    (("manta_swarm.aggregator.cli", "status", "--dir", "missing"), "holds no run"),
    (("manta_swarm.aggregator.cli", "stop", "--dir", "missing"), "no aggregator runs on missing"),
    (("manta_swarm.aggregator.cli", "backup", "to", "--dir", "missing"), "holds no log"),
    (("manta_swarm.aggregator.cli", "restore", "missing", "--dir", "new"), "holds no log"),
    (("manta_swarm.aggregator.cli", "hand-over", "to", "--dir", "missing"), "holds no log"),
    (("manta_swarm.aggregator.cli", "credits", "--dir", "missing"), "holds no"),
    (("manta_swarm.aggregator.cli", "invite", "--dir", "missing"), "holds no"),
    (("manta_swarm.aggregator.cli", "invite", "--dir", "kept"), "nobody can be invited to it"),
    (("manta_swarm.aggregator.cli", "invite", "--dir", "missing", "--guest", "--proven"), "leave --guest or --proven out"),
    (("manta_swarm.aggregator.cli", "revoke", "--dir", "missing"), "say what is taken back"),
    (("manta_swarm.aggregator.cli", "revoke", "--dir", "missing", "--peer", NODE.rpartition("/")[2]), "holds no log"),
    (("manta_swarm.peer.cli", "join", "--invitation", "garbage", "--initial-peers", NODE), "garbage is no invitation"),
    (("manta_swarm.peer.cli", "join", "--invitation", GUESTS, "--initial-peers", NODE), "it is for guests, who look on and train nothing"),
    (("manta_swarm.aggregator.cli", "recover", "to", "--dir", "missing"), "holds no log"),
    (("manta_swarm.aggregator.cli", "witness", "--of", "nowhere", "--dir", "missing"), "is no peer address"),
    (("manta_swarm.aggregator.cli", "snapshot", "state.safetensors", "--dir", "missing"), "holds no log"),
    (("manta_swarm.aggregator.cli", "restore", "kept", "--dir", "new"), "there is no key kept/identity.key"),
    (("manta_swarm.aggregator.cli", "restore", "kept", "--dir", "new", "--key", "missing"), "there is no key missing"),
    (("manta_swarm.aggregator.cli", "check", "missing.toml"), "there is no run file"),
    (("manta_swarm.aggregator.cli", "ledger", "check-proof", "missing"), "cannot read missing"),
    (("manta_swarm.aggregator.local.cli", "up", "--private", "missing"), "cannot read"),
    (("manta_swarm.automl.cli", "evaluate", "missing.safetensors"), "there is no missing.safetensors"),
    ((*FIND, "missing.safetensors"), "missing.safetensors is no snapshot"),
    (("manta_swarm.automl.cli", "export", "--snapshot", "missing", "--arch", "largest", "--out", "new"), "missing is no snapshot"),
    (("manta_swarm.automl.cli", "data", "folder-flowers", "--data-root", "missing"), "is no folder"),
    (("manta_swarm.automl.cli", "profile", "--out", "missing/table.json"), "no folder missing"),
    (
        ("manta_swarm.automl.cli", "profile", "--out", "table.json", "--runtime", "onnxruntime", "--dtype", "bf16"),
        "on the CPU in fp32 only",
    ),
    # What is not what it should be.
    (("manta_swarm.peer.cli", "join", "--dir", "settings"), "'gpu' is not a key"),
    (("manta_swarm.peer.cli", "init", "--dir", "settings"), "there already"),
    (("manta_swarm.peer.cli", "specialise", "--latency-ms", "5", "--snapshot", "garbage"), "garbage is no snapshot"),
    (("manta_swarm.peer.cli", "specialise", "--latency-ms", "5", "--out", "garbage"), "is no folder"),
    (("manta_swarm.peer.cli", "identity", "new", "--dir", "garbled"), "is there already"),
    (("manta_swarm.peer.cli", "identity", "restore", "garbage", "--dir", "new"), "no copy of a key"),
    ((*PEER[:-1], "garbled"), "is no identity"),
    ((*PEER[:-1], "readable"), "chmod 600"),
    ((*PEER, "--latency-table", "garbage"), "is no latency table"),
    ((*START, "garbage", "--dir", "new"), "cannot read garbage"),
    ((*START, "run.toml", "--dir", "new", "--first-state", "garbage"), "garbage is no snapshot"),
    ((*START, "unknown-key.toml", "--dir", "new"), "run.ronds"),
    ((*START, "overflow.toml", "--dir", "new"), "allow fewer"),
    ((*START, "other-task.toml", "--dir", "new"), "is for stereo"),
    ((*START, "run.toml", "--dir", "garbled"), "is no identity"),
    ((*START, "run.toml", "--dir", "garbage/new"), "garbage is a file"),
    (("manta_swarm.aggregator.cli", "restore", "kept", "--dir", "new", "--key", "garbage"), "is no operator's key"),
    (("manta_swarm.aggregator.cli", "restore", "kept", "--dir", "settings", "--key", "readable/identity.key"), "settings is there already"),
    (("manta_swarm.aggregator.cli", "snapshot", "old.safetensors", "--dir", "kept"), "old.safetensors exists already"),
    (("manta_swarm.aggregator.cli", "snapshot", "missing/state.safetensors", "--dir", "kept"), "there is no folder"),
    (("manta_swarm.aggregator.cli", "snapshot", "state.pt", "--dir", "kept"), "ends with .safetensors"),
    (("manta_swarm.aggregator.cli", "backup", "settings", "--dir", "kept"), "settings is there already"),
    (("manta_swarm.aggregator.cli", "backup", "kept/inside", "--dir", "kept"), "lies inside of kept"),
    (("manta_swarm.aggregator.cli", "backup", "garbage/to", "--dir", "kept"), "garbage is a file"),
    (("manta_swarm.aggregator.cli", "backup", "to", "--dir", "kept", "--with-key"), "there is no key to put into the backup"),
    (("manta_swarm.aggregator.cli", "hand-over", "to", "--dir", "kept"), "there is no key to put into the backup"),
    (("manta_swarm.aggregator.cli", "recover", "missing", "--dir", "kept"), "missing is no folder, and no address"),
    (("manta_swarm.aggregator.cli", "recover", "settings", "--dir", "kept"), "settings is no exported log: check the path"),
    (("manta_swarm.aggregator.cli", "recover", "kept", "--dir", "kept"), "kept is no exported log: check the path"),
    (("manta_swarm.aggregator.cli", "recover", "kept", "--dir", "kept", "--initial-peers", "nowhere"), "is no peer address"),
    (
        ("manta_swarm.aggregator.cli", "init", "new.toml", "--task", "stereo", "--dataset", "digits"),
        "is for stereo, dataset digits for classification",
    ),
    (("manta_swarm.aggregator.cli", "init", "new.toml", "--name", "two\nlines"), "name"),
    (("manta_swarm.aggregator.cli", "ledger", "check-proof", "garbage"), "garbage is no proof"),
    (("manta_swarm.automl.cli", "evaluate", "garbage"), "garbage is no snapshot"),
    ((*FIND, "garbage"), "garbage is no snapshot"),
    # A value.
    ((*PEER, "--gpus", "two"), "indices of GPUs"),
    ((*PEER, "--gpus", "none", "--cuda-graphs"), "--cuda-graphs is for GPUs"),
    ((*PEER, "--max-upload", "fast"), "takes a rate"),
    (("manta_swarm.peer.cli", "limits", "--dir", "new", "--schedule", "22-7"), "takes times of the day"),
    (("manta_swarm.peer.cli", "specialise", "--latency-ms", "fast"), "is no time above zero"),
    (("manta_swarm.peer.cli", "specialise", "--latency-ms", "5"), "no run was found"),
    ((*PEER, "--private-noise", "1"), "noise needs both"),
    ((*START, "run.toml", "--dir", "new", "--threads", "0"), "--threads"),
    (("manta_swarm.aggregator.cli", "check", "run.toml", "--samples-per-s", "nan"), "--samples-per-s takes a number"),
    (("manta_swarm.aggregator.local.cli", "up", "--peers", "0"), "--peers"),
    (("manta_swarm.aggregator.local.cli", "up", "--codec", "mp3"), "--codec"),
    (("manta_swarm.aggregator.local.cli", "up", "--data", "faces"), "unknown data set"),
    (("manta_swarm.aggregator.local.cli", "up", "--supernet", "huge"), "unknown supernet"),
    (("manta_swarm.aggregator.local.cli", "up", "--dir", "."), "holds something already"),
    (("manta_swarm.automl.cli", "data", "faces"), "unknown data set"),
    (("manta_swarm.automl.cli", "space", "--supernet", "huge"), "unknown supernet"),
    (("manta_swarm.automl.cli", "split", "layers", "--out", "new"), "only labelled images"),
    (("manta_swarm.automl.cli", "train", "--out", "new", "--learning-rate", "fast"), "--learning-rate"),
    (("manta_swarm.automl.cli", "train", "--out", "new", "--device", "toaster"), "no device"),
    (("manta_swarm.automl.cli", "train", "--out", "new", "--cuda-graphs"), "give --device cuda as well"),
    ((*FIND, "garbage", "--macs", "many"), "--macs"),
    ((*FIND, "garbage", "--precision", "bf16"), "give --device cuda as well"),
    (("manta_swarm.automl.cli", "evaluate", "garbage", "--precision", "bf16"), "give --device cuda as well"),
    (("manta_swarm.automl.cli", "evaluate", "garbage", "--device", "toaster"), "no device"),
]


@pytest.mark.parametrize(("typed", "words"), MISTAKES, ids=[" ".join(typed)[:90] for typed, _ in MISTAKES])
def test_a_mistake_is_told_before_torch_and_hivemind_are_loaded(
    typed: tuple[str, ...], words: str, here: Path, light: ForkServer | None, tmp_path: Path
) -> None:
    before = sorted(here.rglob("*"))
    ended = run(light, tmp_path, *typed)
    assert ended.exit_code == 2, ended
    assert words in ended.said
    assert ended.imported & HEAVY == frozenset()
    assert sorted(here.rglob("*")) == before


@pytest.mark.usefixtures("here")
def test_the_count_sees_what_a_command_needs(light: ForkServer | None, tmp_path: Path) -> None:
    ended = run(light, tmp_path, "manta_swarm.automl.cli", "data", "digits")
    assert ended.exit_code == 0, ended
    assert {"torch", "sklearn"} <= ended.imported
    assert "torchvision" not in ended.imported
