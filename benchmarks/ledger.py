"""What the log costs: durable appends, claims from their bytes to the disk, proofs, a restart with everything checked, and memory.

    .venv/bin/python benchmarks/ledger.py [--claims 1000000] [--keys 1000] [--dir DIR]

Rounds of real, signed claims (32 to a contribution, ``--keys`` a round) go into a real log (``aggregator.log.log``) in ``--dir``, by
default a temporary folder, until it has ``--claims``. Nothing of making them is in the figures. One process, one thread:

- *one by one*: rounds of one claim, each with a sync of its own before anybody would be told;
- *in batches*: rounds of all keys, read and their signatures checked before, as the intake does it beside the one writing path;
- *claims end to end*: the same, each claim and contribution opened and its signature checked by the very log that takes it;
- *proofs*: receipts of random entries (the entry from the disk, its path to the root): by the clock, by the CPU's time, and by the clock
  those during which no other program was given the core, which on a busy machine says more;
- *restart*: ``Log.open`` in a new process, that is every entry, every rule and every stored node checked again, and the entries' hashes
  against the head that the log has signed; and that process' memory;
- *full verification*: what ``manta-aggregator ledger verify`` does, in a new process: that, and every signature.
"""

import argparse
import random
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from manta_swarm.protocol.signed import Signed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.protocol.exchange import MAX_COHORT, next_open_ms
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.records import Claim, ClaimStep, Contribution, Header, Round, StepMean, commit_digest, entry_of
from manta_swarm.protocol.rewards import TrainingSpec
from manta_swarm.protocol.signing import Identity

SEED = bytes(32)  # of the operator
SINGLE_ROUNDS = 200
PROOFS = 20_000


class Rounds:
    """Makes valid rounds, one after the other, of what some keys claim."""

    def __init__(self, keys: int, claims: int) -> None:
        """Have ``keys``; a run long enough for ``claims`` of them."""
        self.operator = Identity(SEED)
        config = RunConfig.usual("classification")
        manifest = config.model_copy(update={"run": config.run.model_copy(update={"rounds": claims + 10_000})})
        self.signed = SignedManifest.sign(manifest.manifest(self.operator, bytes(32), digits()), self.operator)
        self.manifest: Manifest = self.signed.open()
        self.training_spec: TrainingSpec = ManifestTrainingSpec(self.manifest)
        self._keys = sorted((Identity(secrets.token_bytes(32)) for _ in range(keys)), key=lambda one: one.public_key)
        self._base = self.signed.run
        self._open_ms = self.manifest.exchange.first_open_ms
        self._round = self._size = 0

    def make(self, claims: int) -> list[bytes]:
        """Return the entries of the next round, whose table has so many claims."""
        self._round += 1
        entries, samples = list[bytes](), 0
        for start in range(0, claims, MAX_COHORT):
            some = self._keys[start : min(start + MAX_COHORT, claims)]
            opened = [self._claim(key.public_key, some[0].public_key) for key in some]
            signed_claims = [Signed.sign(claim, key) for claim, key in zip(opened, some, strict=True)]
            digests = tuple(one.digest for one in signed_claims)
            body = secrets.token_bytes(32)
            included, mean = (1 << len(some)) - 1, secrets.token_bytes(32)
            of_step, founder = (StepMean(mean, included),), some[0].public_key
            contribution = Contribution(self.signed.run, self._round, self._base, founder, digests, included, of_step, body, b"")
            signed = Signed.sign(contribution, some[0])
            samples += sum(claim.microbatches for claim in opened) * self.manifest.microbatch_samples
            entries.append(entry_of(Header(signed, tuple(signed_claims))))
        entries.append(self._commit(len(entries), samples, claims))
        return entries

    def _claim(self, key: bytes, founder: bytes) -> Claim:
        microbatches = len(self.training_spec.costs(self._round, "here"))
        return Claim(
            run=self.signed.run,
            round=self._round,
            base=self._base,
            key=key,
            payout=key,
            founder=founder,
            cohort="here",
            steps=(ClaimStep(0, microbatches - 1, (), secrets.token_bytes(32)),),
            work=(1,) * microbatches,
            given=secrets.token_bytes(32),
            residual=b"",
            microbatch_ms=80,
        )

    def _commit(self, contributions: int, samples: int, claims: int) -> bytes:
        self._open_ms = next_open_ms(self.manifest.exchange, self._open_ms, samples, [80] * claims)
        entry = entry_of(
            Round(
                run=self.signed.run,
                round=self._round,
                base=self._base,
                first=self._size,
                contributions=contributions,
                weights=secrets.token_bytes(32),
                mean=secrets.token_bytes(32),
                state=secrets.token_bytes(32),
                thresholds=(),
                min_exponent=self.manifest.exchange.first_min_exponent,
                open_ms=self._open_ms,
            )
        )
        self._base = commit_digest(entry)
        self._size += contributions + 1
        return entry


class Timed:
    """Entries that a log took, and how long that was."""

    def __init__(self, log: Log) -> None:
        """Begin."""
        self._log = log
        self.seconds = self.cpu_s = 0.0
        self.entries = self.claims = 0

    def commit(self, entries: Sequence[bytes], claims: int) -> None:
        """Have the log take one more round, of so many claims."""
        began, cpu = time.perf_counter(), time.process_time()
        self._log.commit(entries)
        self.seconds += time.perf_counter() - began
        self.cpu_s += time.process_time() - cpu
        self.entries += len(entries)
        self.claims += claims

    def figures(self) -> dict[str, float]:
        """Return what came of it."""
        return {"claims": self.claims, "entries": self.entries, "seconds": self.seconds, "cpu_s": self.cpu_s}

    def __str__(self) -> str:
        took = f"{self.seconds:.1f} s, {self.cpu_s:.1f} s of CPU"
        return f"{self.claims / self.seconds:9,.0f} claims/s ({self.claims:,} in {self.entries:,} entries, {took})"


def fill(log: Log, rounds: Rounds, keys: int, claims: int) -> None:
    """Have the log grow until it has so many claims, and print how fast each way is."""
    single = Timed(log)
    for _ in range(SINGLE_ROUNDS):
        single.commit(rounds.make(1), 1)
    results.say(f"one by one          {single}; {SINGLE_ROUNDS / single.seconds:,.0f} rounds/s", what="one by one", **single.figures())
    cold, warm, number = Timed(log), Timed(log), 0
    while single.claims + warm.claims + cold.claims < claims:
        entries = rounds.make(keys)
        number += 1
        if number % 2:
            verify(log.ledger, entries)
            warm.commit(entries, keys)
        else:
            cold.commit(entries, keys)
    for what, timed in (("in batches", warm), ("claims end to end", cold)):
        if timed.claims:
            results.say(f"{what:<20}{timed}", what=what, **timed.figures())


def verify(ledger: Ledger, entries: Sequence[bytes]) -> None:
    """Read entries and check their signatures as the intake does, beside the writing path."""
    for record in map(ledger.verified.entry, entries):
        if isinstance(record, Header):
            ledger.verified.contribution(record.contribution)
            for claim in record.claims:
                ledger.verified.claim(claim)


def prove(log: Log) -> None:
    """Print how long receipts of random entries take."""
    draw, taken, computed = random.Random(0), list[float](), list[float]()
    undisturbed: list[float] = []
    for _ in range(PROOFS):
        index, switches = draw.randrange(log.head.size), _times_taken_away()
        began, cpu = time.perf_counter(), time.thread_time()
        log.receipt(index)
        computed.append((time.thread_time() - cpu) * 1e6)
        taken.append((time.perf_counter() - began) * 1e6)
        if _times_taken_away() == switches:
            undisturbed.append(taken[-1])
    results.say(
        f"proofs              {_line_of(taken)}, of {PROOFS:,} among {log.head.size:,} entries",
        what="proofs",
        median_us=statistics.median(taken),
    )
    print(f"  by the CPU's time {_line_of(computed)}; while the core was ours {_line_of(undisturbed)}, of {len(undisturbed):,}", flush=True)


def _times_taken_away() -> int:
    """Return how often this thread had to leave its core to others."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _line_of(taken: Sequence[float]) -> str:
    cuts = statistics.quantiles(taken, n=1000)
    return f"{cuts[499]:.0f} us in the middle, {cuts[989]:.0f} us p99, {cuts[998]:.0f} us p99.9"


def reopen(directory: Path, claims: int) -> None:
    """In a process of its own: open the log, and print how long that takes and what memory it has."""
    before = psutil.Process().memory_info().rss
    began, cpu = time.perf_counter(), time.process_time()
    with Log.open(directory, Identity(SEED), training_spec_of=ManifestTrainingSpec):
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        after = psutil.Process().memory_info().rss
        on_disk = sum(path.stat().st_size for path in directory.iterdir()) / 2**20
        line = f"restart             {seconds:.1f} s ({cpu_s:.1f} s of CPU), {claims / seconds:,.0f} claims/s"
        results.say(line, what="restart", seconds=seconds, cpu_s=cpu_s)
        memory = {"memory_mib": after / 2**20, "memory_before_mib": before / 2**20, "disk_mib": on_disk}
        line = (
            f"memory              {after / 2**20:.0f} MiB, {before / 2**20:.0f} of them before it was opened; {on_disk:.0f} MiB on the disk"
        )
        results.say(line, what="memory", **memory)


def check(directory: Path, claims: int) -> None:
    """In a process of its own: verify the log, and print how long that takes."""
    began, cpu = time.perf_counter(), time.process_time()
    found = verify_directory(directory, training_spec_of=ManifestTrainingSpec)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    line = f"full verification   {seconds:.1f} s ({cpu_s:.1f} s of CPU), {claims / seconds:,.0f} claims/s of {found.size:,} entries"
    results.say(line, what="full verification", seconds=seconds, cpu_s=cpu_s)


def main() -> None:
    """Run all of it."""
    parser = results.parser(__doc__)
    parser.add_argument("--claims", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--keys", type=int, default=1_000, metavar="N", help="claims of a round where they come in batches")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="an empty folder on the disk that is meant")
    for name in ("--reopen", "--check"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reopen is not None:
        reopen(options.reopen, options.claims)
        results.write(options)
        return
    if options.check is not None:
        check(options.check, options.claims)
        results.write(options)
        return
    if not 1 <= options.keys <= 4_000 or options.claims < 1:
        parser.error("--keys is between 1 and 4000, --claims at least 1")
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        directory = Path(folder) / "log"
        rounds = Rounds(options.keys, options.claims)
        with Log.create(directory, rounds.signed, rounds.operator, training_spec_of=ManifestTrainingSpec) as log:
            fill(log, rounds, options.keys, options.claims)
            prove(log)
        for name in ("--reopen", "--check"):
            kept = Path(folder) / "kept.json"
            command = [sys.executable, __file__, name, str(directory), "--claims", str(options.claims), "--json", str(kept)]
            subprocess.run(command, check=True)
            results.take(kept)
    results.write(options)


if __name__ == "__main__":
    main()
