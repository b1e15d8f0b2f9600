"""How long the programs take to tell a person something: --help of every command, and a mistake of each kind; and what the time goes into.

    python benchmarks/start.py                 # the best of several starts; for comparison `import torch, hivemind`
    python benchmarks/start.py --modules       # and the modules that take longest to import, by `python -X importtime`

Seconds of whole processes: wall clock, and of the CPU. Beside other work the first are several times as long, the second hardly more.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time

import results

_HELP = {
    "manta_swarm.peer.cli": ("", "join", "status", "tables", "pause", "resume", "leave", "limits"),
    "manta_swarm.aggregator.cli": ("", "init", "start", "ledger verify", "ledger replay", "ledger check-proof"),
    "manta_swarm.aggregator.local.cli": ("", "up"),
    "manta_swarm.automl.cli": ("", "data", "split", "space", "train", "evaluate", "profile", "find", "export"),
}
_NODE = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooW"  # nobody's: too short
_MISTAKES = (
    ("a wrong flag", "manta_swarm.peer.cli join --wrong"),
    ("a wrong address", f"manta_swarm.peer.cli join --initial-peers {_NODE}"),
    ("a missing file", "manta_swarm.peer.cli join --latency-table missing --gpus none"),
    ("a wrong GPU", "manta_swarm.peer.cli join --gpus 0,99"),
    ("no peer there", "manta_swarm.peer.cli status --dir missing"),
    ("no peer there", "manta_swarm.peer.cli pause --dir missing"),
    ("a missing file", "manta_swarm.aggregator.cli start missing.toml --dir new"),
    ("a wrong file", "manta_swarm.aggregator.cli start wrong.toml --dir new"),
    ("no log there", "manta_swarm.aggregator.cli ledger verify --dir missing"),
    ("a wrong value", "manta_swarm.aggregator.local.cli up --peers 0"),
    ("a wrong name", "manta_swarm.aggregator.local.cli up --data faces"),
    ("a missing file", "manta_swarm.automl.cli find --snapshot missing"),
    ("a wrong file", "manta_swarm.automl.cli evaluate wrong.toml"),
    ("a wrong name", "manta_swarm.automl.cli data faces"),
)
_PROGRAMS = {
    "manta_swarm.peer.cli": "manta-peer",
    "manta_swarm.aggregator.cli": "manta-aggregator",
    "manta_swarm.aggregator.local.cli": "manta-swarm",
    "manta_swarm.automl.cli": "manta-search",
}
_SHOWN = 12  # modules


def main() -> None:
    """Measure and print."""
    parser = results.parser(__doc__)
    parser.add_argument("--times", type=int, default=3, help="starts of each; the shortest counts")
    parser.add_argument("--modules", action="store_true", help="say what the time of each program's mistakes goes into")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="manta-start-") as folder:
        with open(os.path.join(folder, "wrong.toml"), "w") as file:
            file.write("[run]\nronds = 5\n")
        _show("an empty Python program", ["-c", "pass"], folder, arguments.times, 0)
        _show("import torch, hivemind", ["-c", "import torch, hivemind"], folder, 1, 0)
        for module, commands in _HELP.items():
            for command in commands:
                typed = " ".join([_PROGRAMS[module], *command.split(), "--help"])
                _show(typed, ["-m", module, *command.split(), "--help"], folder, arguments.times, 0)
        for what, typed in _MISTAKES:
            module, *words = typed.split()
            _show(f"{what}: {' '.join([_PROGRAMS[module], *words])}", ["-m", module, *words], folder, arguments.times, 2)
            if arguments.modules:
                _print_modules(["-m", module, *words], folder)
    results.write(arguments)


def _show(what: str, arguments: list[str], folder: str, times: int, exit_code: int) -> None:
    """Print the shortest of several starts."""
    taken = []
    for _ in range(times):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        ended = subprocess.run([sys.executable, *arguments], cwd=folder, env=_environment(folder), capture_output=True, text=True)
        wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append((wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        if ended.returncode != exit_code:
            sys.exit(f"{arguments} ended with {ended.returncode}, not {exit_code}: {ended.stderr}")
    wall_s, cpu_s = min(taken)
    results.say(f"{wall_s:7.2f} s, CPU {cpu_s:5.2f} s  {what}", what=what, wall_s=wall_s, cpu_s=cpu_s)


def _print_modules(arguments: list[str], folder: str) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    ended = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True)
    lines = re.findall(r"^import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)$", ended.stderr, re.MULTILINE)
    longest = sorted(((int(total), name) for _, total, _, name in lines), reverse=True)[:_SHOWN]
    for total, name in longest:
        print(f"{total / 1000:14.0f} ms with all that it imports: {name}")


def _environment(folder: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MANTA_")}
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return {**kept, "HOME": folder, "MANTA_STATE_DIR": folder, "PYTHONPATH": root}


if __name__ == "__main__":
    main()
