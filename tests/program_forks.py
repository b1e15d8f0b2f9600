"""Starts programs of one folder with ``--help``, each as a fork of this process, which has loaded what they import: started by its path.

A real start loads torch and hivemind, seconds of a processor for each program. A fork finds what a real start of ``python PROGRAM`` does:
a working folder, ``sys.argv``, its own folder first in ``sys.path``, and streams of its own. No module of that folder or of ``tests`` is
loaded before: nothing but the standard library and what is installed is imported here.

Reads a list of ``[program, working folder]`` as JSON, and writes one of ``[exit code, stdout, stderr]``.
"""

import ast
import contextlib
import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import NoReturn


def imported(folder: Path) -> set[str]:
    """Return the modules that the files of a folder import at their top, without those of the folder itself and of the tests."""
    own = {path.stem for path in folder.glob("*.py")} | {"tests"}
    found: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.add(node.module)
    return {name for name in found if name.split(".")[0] not in own}


def ended(program: str, folder: str) -> tuple[int, str, str] | None:
    """Return how a fork ended, and what it printed; None in the fork, which is to run the program."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if (pid := os.fork()) == 0:
            for stream, place in ((out, 1), (err, 2)):
                os.dup2(stream.fileno(), place)
            os.chdir(folder)
            sys.argv = [program, "--help"]
            sys.path[0] = str(Path(program).parent)
            return None
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for stream in (out, err):
            stream.seek(0)
        return code, out.read().decode(), err.read().decode()


def main() -> str | None:
    """Start each program. Returns the program to run in a fork, and None in the process that was started."""
    asked = json.load(sys.stdin)
    for name in sorted({name for program, _ in asked for name in imported(Path(program).parent)}):
        with contextlib.suppress(ImportError):  # the fork that wants it says so
            importlib.import_module(name)
    if sys.platform == "linux" and len(threads := os.listdir("/proc/self/task")) > 1:
        sys.exit(f"{len(threads)} threads are there before the first fork")
    gc.freeze()  # what was loaded is looked at no more, and so stays in memory that all share
    answers = []
    for program, folder in asked:
        if (answer := ended(program, folder)) is None:
            return str(program)
        answers.append(answer)
    json.dump(answers, sys.stdout)
    return None


def run(program: str) -> NoReturn:
    """Run a program, and end this process, a fork, as it ends; Python takes a second to take apart what was loaded, and is not asked to."""
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__" and (_program := main()) is not None:
    run(_program)
