"""Bodies, norms, means and residuals have the same bits whatever instructions and threads a process uses: one pinned digest for all."""

import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from manta_swarm.codec.coding import encode, parse
from manta_swarm.codec.mean import Sum, total_weights
from manta_swarm.codec.residuals import covered, given, left_over, near_mean
from tests.codec.reference import DENSE

COUNT = 300_003  # more than a group, and some of a chunk
DENSE_DIGEST = "08b87a84498b5d9f065e4478510cd9155a623b2a1d78201246461866717f4949"
SPARSE_DIGEST = "a93d48897c5aa8427921fceb481162974619818c8f566258fd3b61ae3184fca5"
ROOT = Path(__file__).resolve().parents[2]
# What numpy may use beside its baseline, and what of it the machines of some years ago lack.
FOUND = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
WIDE = [name for name in FOUND if name.startswith(("AVX512", "X86_V4"))]
PROGRAM = """
import numpy as np
from tests.codec.test_same_bits import dense_digest, sparse_digest
print(*np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))
print(dense_digest(), sparse_digest())
"""


@cache
def vector(salt: int) -> np.ndarray:
    """Values made of integers: of all signs, magnitudes from 2^-149 to 2^20, chunks of different sizes, an eighth of them denormal."""
    words = np.frombuffer(hashlib.shake_256(bytes([salt])).digest(4 * COUNT), "<u4").astype(np.uint32)
    chunk = (np.arange(COUNT) // 4096).astype(np.uint32)
    exponents = np.where(chunk % 8 == 0, 0, (words >> 23) % 12 + chunk * 5 % 136).astype(np.uint32)
    values = ((words & np.uint32(0x807FFFFF)) | (exponents << np.uint32(23))).view(np.float32)
    values.flags.writeable = False
    return values


def dense_digest() -> str:
    """Return SHA-256 over bodies, norms, decoded values and means, of both dense codecs and of low and high min exponents."""
    found = hashlib.sha256()
    for codec in DENSE:
        for min_exponent in (-149, -30, -8):
            sums = Sum(COUNT, min_exponent)
            for row in range(3):
                data = encode(codec, vector(row), min_exponent + row)
                body = parse(codec, data, COUNT)
                sums.add(body, row, 65535 - 7919 * row)
                for part in (data, str(body.norm_square).encode(), body.values(min_exponent + row).astype("<f4").tobytes()):
                    found.update(part)
            found.update(sums.mean(100_003).astype("<f4").tobytes())
    return found.hexdigest()


def sparse_digest() -> str:
    """Return SHA-256 over what cohorts of two give in two rounds, some of it masked: bodies, residuals and means."""
    found = hashlib.sha256()
    mask = np.arange(COUNT) % 4096 < 3000
    for codec in ("topk-512-3", "topk-256-4", "topk-64-2"):
        residual, sums = None, Sum(COUNT, -30)
        for row, covers in enumerate((None, mask)):
            whole = near_mean([given(vector(2 * row + member), residual, 95, covers) for member in range(2)], [80 + row, 17])
            data = encode(codec, covered(whole, covers), -30)
            body = parse(codec, data, COUNT)
            residual = left_over(whole, body, -30)
            sums.add(body, row, 65535 - 7919 * row, covers)
            for part in (data, str(body.norm_square).encode(), residual.astype("<f4").tobytes()):
                found.update(part)
        found.update(sums.mean(total_weights([65535, 60000], [None, mask], COUNT)).astype("<f4").tobytes())
    return found.hexdigest()


def test_this_process_finds_the_pinned_digests() -> None:
    assert dense_digest() == DENSE_DIGEST
    assert sparse_digest() == SPARSE_DIGEST


@pytest.mark.parametrize(("switched_off", "threads"), [(FOUND, "1"), (WIDE, "2")], ids=["baseline", "avx2"])
def test_every_instruction_set_and_number_of_threads_finds_the_pinned_digests(switched_off: list[str], threads: str) -> None:
    environment = {
        **os.environ,
        "NPY_DISABLE_CPU_FEATURES": " ".join(switched_off),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
    }
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    extensions, found = (line.split() for line in process.stdout.splitlines())
    assert extensions == [name for name in FOUND if name not in switched_off]
    assert found == [DENSE_DIGEST, SPARSE_DIGEST]
