import os
import platform
import subprocess
import sys

import pytest

from manta_swarm.automl import environment

# Blocks of 64 MiB in a thread of its own, as a peer computes: what the process holds with them, without them, and once they are given back.
_PROGRAM = """
import ctypes, threading
from manta_swarm.automl.environment import give_back_memory, keep_freed_memory

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

def work():
    blocks = [b"1" * (64 << 20) for _ in range(4)]
    full = held()
    del blocks
    print(kept, full, held(), end=" ")
    give_back_memory()
    print(held())

kept = keep_freed_memory()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")


def held(**environment: str) -> tuple[str, int, int, int]:
    """Return whether memory is kept, and the MiB that the process held with the blocks, without them, and after all."""
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env={**cleared, **environment})
    kept, *sizes = done.stdout.split()
    full, freed, given_back = map(int, sizes)
    return kept, full, freed, given_back


@_GLIBC
def test_what_a_thread_frees_stays_with_the_process_until_it_is_given_back() -> None:
    kept, full, freed, given_back = held()
    assert kept == "True"
    assert freed > full - 64
    assert given_back < full - 192


@_GLIBC
@pytest.mark.parametrize("chosen", [{"MALLOC_MMAP_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}])
def test_who_has_chosen_how_memory_is_kept_is_not_overruled(chosen: dict[str, str]) -> None:
    kept, full, freed, _ = held(**chosen)
    assert kept == "False"
    assert freed < full - 192


def test_another_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_glibc", lambda: None)
    for name in environment._CHOSEN:
        monkeypatch.delenv(name, raising=False)
    assert not environment.keep_freed_memory()
    environment.give_back_memory()
