"""Four real operators with three etcds under load: one is killed, stands still or is cut off, again and again; what is lost, and when.

    python benchmarks/operators.py --times 200
    python benchmarks/operators.py --times 200 --namespaces

Each time it is the leader, or sometimes a follower. It is ended by SIGKILL, and started again once the others go on; or it stands still by
SIGSTOP for 10 s: longer than its lease, so that it wakes up as a leader that others have replaced. With --namespaces (Linux, root) each
operator, etcd and peer is on a host of its own, and a line may be cut silently in both directions for 15 s: that of the operator
to everybody; of the operator and its etcd together; to the other operators only, while it reaches etcd and the peers; or to etcd only.

Counted: inclusion promises that were not kept, as the peers themselves find them out; operators' logs that are no prefix of each other; and
the time from each fault to the next commit that the others know: where the leader failed, the first under another one's turn. The next
fault comes once all hear each other again: two at a time are more than four operators can bear. Everything runs on this computer, so the
times are those of a busy one.
"""

import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results

from manta_swarm.aggregator.log.storage import is_at_rest, reading
from manta_swarm.protocol.records import Round, open_entry
from tests.etcds import etcds_in
from tests.faults.split_network import why_not
from tests.network.operators import OperatorPrograms, name_of
from tests.network.operators_apart import OperatorsApart, operators_apart
from tests.network.processes import small_run

STANDSTILL_S = 10.0
CUT_S = 15.0
LATE_S = 10.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which an operator fails: how it begins, how it ends, and how long it lasts at least."""

    name: str
    begin: Callable[[int], None]
    end: Callable[[int], None]
    lasts_s: float
    share: int  # of all faults, in proportion


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one."""

    what: str
    taken_s: float  # from its begin until one of the others wrote
    commit_s: float  # from its begin to the next commit that the others know
    back_s: float  # from its end until the operator had what it missed, and all heard each other


def entries_of(directory: Path) -> list[bytes]:
    """Return the entries of an operator's log that nobody writes."""
    with reading(directory, at_rest=is_at_rest(directory)) as connection:
        return [entry for (entry,) in connection.execute("SELECT bytes FROM entries ORDER BY position")]


def faults_of(programs: OperatorPrograms) -> list[Fault]:
    """Return what may happen to these."""

    def start(place: int) -> None:
        programs.start_operator(place)
        programs.wait_until(lambda: bool(programs.status(name_of(place)).get("addresses")), "it listens again")

    faults = [
        Fault("killed", lambda place: programs.kill(name_of(place)), start, 0.0, 60),
        Fault("stood still", lambda place: programs.pause(name_of(place)), lambda place: programs.resume(name_of(place)), STANDSTILL_S, 40),
    ]
    if isinstance(programs, OperatorsApart):
        cuts = {
            "cut off": programs.cut_off,
            "cut off with its etcd": programs.cut_off_with_etcd,
            "cut off from operators": programs.cut_off_from_operators,
            "cut off from etcds": programs.cut_off_from_etcds,
        }
        faults += [Fault(name, cut, lambda _place: programs.join(), CUT_S, 25) for name, cut in cuts.items()]
    return faults


def fail(programs: OperatorPrograms, faults: Sequence[Fault], rng: random.Random) -> Seen:
    """Let one operator fail, and see what comes of it."""
    leader = programs.wait_for_leader()
    place = leader if rng.random() < 0.8 else rng.choice([each for each in programs.at_work() if each != leader])
    others = [each for each in programs.at_work() if each != place]
    (fault,) = rng.choices(faults, [each.share for each in faults])
    begun = time.monotonic()
    fault.begin(place)
    programs.wait_until(lambda: programs.leader(others) is not None, "one of the others writes")
    taken_s, before = time.monotonic() - begun, programs.round(others)
    programs.wait_until(lambda: programs.round(others) > before, "the others commit")
    commit_s = time.monotonic() - begun
    time.sleep(max(0.0, begun + fault.lasts_s - time.monotonic()))
    newest, ended = programs.round(others), time.monotonic()
    fault.end(place)
    programs.wait_until(lambda: programs.round([place]) >= newest, "it has what it missed")
    programs.wait_until(programs.hear_each_other, "all operators hear each other")
    return Seen(f"{'leader' if place == leader else 'follower'} {fault.name}", taken_s, commit_s, time.monotonic() - ended)


@contextlib.contextmanager
def folder_for(kept: Path | None) -> Iterator[Path]:
    """Yield the folder that is kept, or one that is gone at the end."""
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept
    else:
        with tempfile.TemporaryDirectory(prefix="manta-") as folder:
            yield Path(folder)


@contextlib.contextmanager
def four_operators(folder: Path, peers: list[str], *, is_apart: bool) -> Iterator[OperatorPrograms]:
    """Yield four operators that are not started yet: on loopback, or on hosts of their own."""
    config = small_run(rounds=100_000, first_open_s=1.5, min_open_s=1.0, max_open_s=3.0)
    if is_apart:
        with operators_apart(folder, config, peers) as programs:
            yield programs
    else:
        with etcds_in(folder / "etcd", 3) as etcds, OperatorPrograms(folder, config, [etcd.url for etcd in etcds]) as programs:
            yield programs


def main() -> int:
    """Measure, and print; return the exit code."""
    parser = results.parser(__doc__)
    parser.add_argument("--times", type=int, default=200, help="faults")
    parser.add_argument("--minutes", type=float, default=1e9, help="no further fault after so many")
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--namespaces", action="store_true", help="each program on a host of its own, whose lines are cut too")
    parser.add_argument("--dir", type=Path, help="for the programs' files, which are kept; a new folder")
    arguments = parser.parse_args()
    if arguments.namespaces and (reason := why_not()) is not None:
        print(f"--namespaces: {reason}", file=sys.stderr)
        return 2
    peers = [f"peer-{place}" for place in range(arguments.peers)]
    with (
        folder_for(arguments.dir) as folder,
        four_operators(folder, peers, is_apart=arguments.namespaces) as programs,
    ):
        programs.start_operators()
        for place, peer in enumerate(peers):
            programs.start_peer_of(peer, place % 4)
        programs.wait_until(lambda: programs.round(range(4)) >= 3, "rounds are committed")
        programs.wait_until(programs.hear_each_other, "all operators hear each other")
        rng, faults, seen = random.Random(arguments.seed), faults_of(programs), list[Seen]()
        end_s = time.monotonic() + 60 * arguments.minutes
        while len(seen) < arguments.times and time.monotonic() < end_s:
            seen.append(fail(programs, faults, rng))
            last, now = seen[-1], f"round {programs.round(range(4))}"
            took = f"another writes after {last.taken_s:.1f} s, commit after {last.commit_s:.1f} s, back {last.back_s:.1f} s after its end"
            results.say(f"{len(seen)}: {last.what}: {took}, {now}", fault=last)
        newest = programs.round(range(4))
        programs.wait_until(lambda: all(programs.round([place]) > newest for place in range(4)), "all go on")
        statuses = [programs.status(peer) for peer in peers]
        for place in range(4):
            programs.interrupt(name_of(place))
        for place in range(4):
            programs.wait_for_end(name_of(place))
        logs = sorted((entries_of(programs.directory / name_of(place)) for place in range(4)), key=len)
    forks = sum(one != logs[-1][: len(one)] for one in logs)
    broken, lost, counted = (sum(status[name] for status in statuses) for name in ("promises_broken", "samples_lost", "rounds_counted"))
    rounds = num_rounds(logs[-1])
    results.say(f"faults {len(seen)}; rounds {rounds}; contributions counted {counted}", faults=len(seen), rounds=rounds, counted=counted)
    line = f"inclusion promises lost {broken}; operators' logs that fork {forks}; samples without an inclusion promise in time {lost}"
    results.say(line, promises_lost=broken, forks=forks, samples_lost=lost)
    show(seen)
    results.write(arguments)
    return 1 if broken or forks else 0


def show(seen: Sequence[Seen]) -> None:
    """Print how long each kind of fault was felt."""
    for what in sorted({each.what for each in seen}):
        taken_s = [each.taken_s for each in seen if each.what == what]
        commit_s = [each.commit_s for each in seen if each.what == what]
        back_s = [each.back_s for each in seen if each.what == what]
        print(
            f"{what} {len(commit_s)} times: next commit after {statistics.median(commit_s):.1f} s median, {max(commit_s):.1f} s at most "
            f"(another wrote after {statistics.median(taken_s):.1f}, {max(taken_s):.1f}); "
            f"back {statistics.median(back_s):.1f} s after its end, {max(back_s):.1f} s at most"
        )
    late = sum(each.commit_s > LATE_S for each in seen)
    print(f"the next commit came after more than {LATE_S:.0f} s in {late} of {len(seen)}")


def num_rounds(entries: list[bytes]) -> int:
    """Return how many rounds these entries have."""
    return sum(isinstance(open_entry(entry), Round) for entry in entries)


if __name__ == "__main__":
    sys.exit(main())
