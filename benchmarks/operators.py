"""Four real operators with three etcds under load: one of them is killed or stands still, again and again; what is lost, and for how long.

    python benchmarks/operators.py --times 200

Each time the writer, or sometimes a fellow, is ended by SIGKILL (and started again once the others go on), or stands still by SIGSTOP for
10 s: longer than its lease, so that it wakes up as a writer that others have replaced. Counted: tickets that were not kept, as the peers
themselves find them out; operators' logs that are no prefix of each other; and the time from each fault to the next commit that the
others know. Everything runs on this computer, so the times are those of a busy one.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aggregator.log.storage import is_at_rest, reading
from protocol.records import Round, open_entry
from tests.etcds import etcds_in
from tests.swarm.operators import OperatorPrograms, name_of
from tests.swarm.processes import small_run

STANDSTILL_S = 10.0


def entries_of(directory: Path) -> list[bytes]:
    """Return the entries of an operator's log that nobody writes."""
    with reading(directory, at_rest=is_at_rest(directory)) as connection:
        return [entry for (entry,) in connection.execute("SELECT bytes FROM entries ORDER BY position")]


def fault(programs: OperatorPrograms, rng: random.Random) -> tuple[str, float]:
    """Let one operator die or stand still; return what it was, and after how many seconds the others had one more commit."""
    writer = programs.wait_for_writer()
    place = writer if rng.random() < 0.8 else rng.choice([each for each in programs.at_work() if each != writer])
    others = [each for each in programs.at_work() if each != place]
    is_killed = rng.random() < 0.6
    before, begun = programs.round(others), time.monotonic()
    if is_killed:
        programs.kill(name_of(place))
    else:
        programs.pause(name_of(place))
    programs.wait_until(lambda: programs.round(others) > before, "the others commit")
    took_s = time.monotonic() - begun
    if is_killed:
        programs.start_operator(place)
        programs.wait_until(lambda: bool(programs.status(name_of(place)).get("addresses")), "it listens again")
    else:
        time.sleep(max(0.0, begun + STANDSTILL_S - time.monotonic()))
        programs.resume(name_of(place))
    newest = programs.round(others)
    programs.wait_until(lambda: programs.round([place]) >= newest, "it has what it missed")
    return f"{'writer' if place == writer else 'fellow'} {'killed' if is_killed else 'stood still'}", took_s


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="faults")
    parser.add_argument("--minutes", type=float, default=1e9, help="no further fault after so many")
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng, took = random.Random(arguments.seed), dict[str, list[float]]()
    config = small_run(rounds=100_000, first_open_s=1.5, min_open_s=1.0, max_open_s=3.0)
    with (
        tempfile.TemporaryDirectory(prefix="manta-") as folder,
        etcds_in(Path(folder) / "etcd", 3) as etcds,
        OperatorPrograms(Path(folder), config, [etcd.url for etcd in etcds]) as programs,
    ):
        programs.start_operators()
        peers = [f"peer-{place}" for place in range(arguments.peers)]
        for place, peer in enumerate(peers):
            programs.start_peer_of(peer, place % 4)
        programs.wait_until(lambda: programs.round(range(4)) >= 3, "rounds are committed")
        end_s, count = time.monotonic() + 60 * arguments.minutes, 0
        while count < arguments.times and time.monotonic() < end_s:
            what, took_s = fault(programs, rng)
            took.setdefault(what, []).append(took_s)
            count += 1
            print(f"{count}: {what}, next commit after {took_s:.1f} s, round {programs.round(range(4))}", flush=True)
        broken = sum(programs.status(peer)["promises_broken"] for peer in peers)
        lost = sum(programs.status(peer)["samples_lost"] for peer in peers)
        counted = sum(programs.status(peer)["rounds_counted"] for peer in peers)
        for place in range(4):
            programs.interrupt(name_of(place))
        for place in range(4):
            programs.wait_for_end(name_of(place))
        logs = sorted((entries_of(programs.directory / name_of(place)) for place in range(4)), key=len)
    forks = sum(one != logs[-1][: len(one)] for one in logs)
    print(f"faults {count}; rounds {num_rounds(logs[-1])}; contributions counted {counted}")
    print(f"acknowledged tickets lost {broken}; operators' logs that fork {forks}; samples without a ticket in time {lost}")
    for what, times in sorted(took.items()):
        print(f"{what} {len(times)} times: next commit after {statistics.median(times):.1f} s median, {max(times):.1f} s at most")


def num_rounds(entries: list[bytes]) -> int:
    """Return how many rounds these entries have."""
    return sum(isinstance(open_entry(entry), Round) for entry in entries)


if __name__ == "__main__":
    main()
