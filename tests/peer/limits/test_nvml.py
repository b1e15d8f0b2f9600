"""What a driver says of its GPUs: a library of C stands in for NVIDIA's, under its name; and a machine without a driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from manta_swarm.peer.limits.sensors import Gpu

UNKNOWN_ERROR = 999  # nvmlReturn_t
DRIVER = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInitWithFlags(unsigned flags) { return INIT; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "550.54.15", size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(index + 1UL); return index == 2 ? 999 : 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "NVIDIA H100", size); return device == (void *)1 ? 0 : 3; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out) { *out = 40 + sensor; return device == (void *)1 ? 0 : 3; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *out) { *out = 123500; return device == (void *)1 ? 0 : 3; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = 85899345920ULL; memory->free = 85899345919ULL; memory->used = 1;
    return device == (void *)1 ? 0 : 3;
}
"""
ASK = "from manta_swarm.peer.limits import sensors; print((sensors.driver(), sensors.gpus()))"


@pytest.fixture
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a folder with a driver's library, which says this of its start."""
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", f"-DINIT={request.param}", "-o", library, tmp_path / "driver.c"], check=True, timeout=60)
    return tmp_path


def said(libraries: Path) -> object:
    """Return the driver's version and the GPUs, by a program that finds libraries there."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    program = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert not program.stderr
    return eval(program.stdout, {"Gpu": Gpu})


@pytest.mark.needs("cc")
@pytest.mark.parametrize("driver", [0], indirect=True)
def test_gpus_in_the_driver_s_order_without_one_that_is_lost_and_with_what_each_does_not_measure(driver: Path) -> None:
    h100 = Gpu("NVIDIA H100", 40.0, 123.5, 80 * 2**30, 1)
    assert said(driver) == ("550.54.15", [h100, Gpu("a GPU", None, None, None, None)])


@pytest.mark.needs("cc")
@pytest.mark.parametrize("driver", [UNKNOWN_ERROR], indirect=True)
def test_a_driver_that_does_not_start_has_no_gpus(driver: Path) -> None:
    assert said(driver) == (None, [])


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has the driver")
def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert said(tmp_path) == (None, [])


def test_nothing_of_the_driver_is_loaded_before_it_is_asked() -> None:
    loaded = "import sys, manta_swarm.peer.limits.sensors; print('pynvml' in sys.modules)"
    program = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    assert program.stdout == "False\n"
