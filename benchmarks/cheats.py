"""How soon an audited swarm of real programs finds peers that cheat, what they and the honest have then, and what audits cost.

    .venv/bin/python benchmarks/cheats.py [--cheats noise,images,half,poison] [--honest 4] [--volunteers 0] [--rounds 12] [--lots 8]
        [--local-steps 1] [--codec int16]

Starts an aggregator, --honest peers, of which --volunteers audit, and one peer for each cheat (``tests.swarm.cheats`` says what each does),
each alone, and waits until --rounds rounds are over after the first in which all of them counted. --lots is about how many lots of 16
digits each peer trains in a round, in --local-steps steps; contributions are coded by --codec. Then it verifies the log, and prints for
each cheat after how many rounds of its own it was found guilty, and what it has; whether anybody honest was accused, and what audits paid;
and the CPU's time of the process that computes lots again beside that of the honest peers. Auditors that lie (``yes``, ``accuse``)
begin first: they are asked once they are proven, after --proven-samples, and only then the others begin.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aggregator.log.verify import verify_directory
from aggregator.settings.sections import ExchangeSection, TrustSection
from automl.training.settings import first_floor
from protocol.ledger import Ledger
from tests.swarm.cheats import KINDS, LIARS
from tests.swarm.processes import Programs, small_run

_SAMPLES = 16
_POLL_S = 0.5
_AUDITS = ("--audit", "100%")


def cpu_s(programs: Programs, names: list[str]) -> float:
    """Return the CPU's time of programs, and of what they started."""
    total = 0.0
    for name in names:
        process = psutil.Process(int(programs.status(name)["pid"]))
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            total += times.user + times.system
    return total


def have_audited(programs: Programs, cheats: list[str]) -> bool:
    """Return whether all auditors that lie have said something, so that they are asked."""
    return all(programs.status(name).get("audits") for name in cheats if name in LIARS)


def watch(programs: Programs, names: list[str], rounds: int) -> None:
    """Return so many rounds after the first in which all of them counted."""
    programs.wait_until(lambda: all(programs.status(name).get("rounds_counted", 0) for name in names), "all count in a round")
    first = int(programs.status("aggregator")["round"])
    while int(programs.status("aggregator")["round"]) < first + rounds:
        time.sleep(_POLL_S)


def told(directory: Path, keys: dict[str, bytes], cheats: list[str]) -> None:
    """Print what the log says of each peer."""
    last: list[Ledger] = []
    first: dict[bytes, int] = {}

    def look(ledger: Ledger) -> None:
        last[:] = [ledger]
        for listed in ledger.table_at(ledger.round) or ():
            for key in listed.keys:
                first.setdefault(key, ledger.round)

    verify_directory(directory, on_round=look)
    standing = last[0].standing
    for name, key in keys.items():
        fault, account = standing.guilty.get(key), standing.account(key)
        void = sum(each.amount for each in account.void)
        if name in cheats:
            found = f"guilty {fault.round - first[key] + 1} rounds after its first" if fault is not None else "not guilty"
        else:
            found = "ACCUSED" if fault is not None or account.void else f"{standing.samples[key]} samples found good"
        why = ", ".join(each.fault.reason for each in account.void)
        print(f"{name}: {found}; credit {account.credit}, void {void}{f' ({why})' if why else ''}")
    print(f"{last[0].round} rounds")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cheats", default="noise,images,half,poison", metavar="NAMES", help=", ".join(KINDS))
    parser.add_argument("--honest", type=int, default=4, metavar="N", help="peers that are")
    parser.add_argument("--volunteers", type=int, default=0, metavar="N", help="of these, that audit")
    parser.add_argument("--proven-samples", type=int, default=65_536, metavar="N", help="that make a peer proven")
    parser.add_argument("--rounds", type=int, default=12, metavar="N")
    parser.add_argument("--local-steps", type=int, default=1, metavar="H")
    parser.add_argument("--codec", default="int16", help="as in [exchange] of a run file")
    parser.add_argument("--lots", type=int, default=8, metavar="N", help="about, of a peer in a round")
    arguments = parser.parse_args()
    cheats = [name for name in arguments.cheats.split(",") if name]
    honest = [f"honest-{number}" for number in range(arguments.honest)]
    batch = _SAMPLES * arguments.lots * (len(cheats) + len(honest))
    config = small_run(rounds=10_000, first_open_s=10, max_open_s=60, target_batch=batch, weight_cap=batch // 2, max_claim_samples=batch)
    exchange = ExchangeSection(local_steps=arguments.local_steps, codec=arguments.codec, first_floor=first_floor(arguments.codec))
    trust = TrustSection(mode="audited", proven_samples=arguments.proven_samples)
    config = config.model_copy(update={"trust": trust, "exchange": exchange})
    with tempfile.TemporaryDirectory() as folder, Programs(Path(folder), config) as programs:
        programs.start_aggregator()
        for number, name in enumerate(honest):
            programs.start_peer(name, name, *(_AUDITS if number < arguments.volunteers else ()))
        for name in sorted(cheats, key=lambda cheat: cheat not in LIARS):
            if name not in LIARS:
                programs.wait_until(lambda: have_audited(programs, cheats), "auditors that lie are asked")
            programs.start_cheat(name, name, *(_AUDITS if name in LIARS else ()))
            programs.expect_end(name)
        watch(programs, [*honest, *cheats], arguments.rounds)
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in (*honest, *cheats)}
        audits = programs.status("aggregator")["audits"]
        peers_s = cpu_s(programs, honest)
        for name in (*honest, "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
        told(Path(folder) / "aggregator", keys, cheats)
    print(f"audits: {audits['claims']} claims, {audits['lots']} lots computed again, {audits['missed']} questions missed")
    print(f"left to volunteers: {audits['left']} questions")
    print(f"CPU: the operator's audits {audits['cpu_ms'] / 1000:.1f} s, the honest peers with theirs {peers_s:.1f} s")


if __name__ == "__main__":
    main()
