"""How soon an audited swarm of real programs finds peers that cheat, what they and the honest are paid then, and what audits cost.

    .venv/bin/python benchmarks/cheats.py [--cheats noise,half,poison,silent] [--honest 4] [--volunteers 0] [--rounds 12] [--microbatches 8]
        [--local-steps 1] [--codec int16] [--audit-percent 100] [--newcomer-percent 100] [--kept-rounds 4] [--pending-rounds 8]
        [--audit-share 1] [--open-s 6]

Starts an aggregator with its auditor, --honest peers, of which --volunteers audit, and a peer for each cheat (``tests.network.cheats`` says
what each does), each alone, and waits until --rounds rounds are over after the first in which all of them counted. --microbatches is about
how many microbatches of 16 digits each peer trains in a round, in --local-steps steps; contributions are coded by --codec. Then it verifies
the log, and prints for each cheat after how many rounds of its own it was found out, and what it was paid beside an honest peer, each by
what it is paid of the rounds that are paid by then; whether anybody honest was accused; and the CPU's time and the bytes of audits beside
the CPU's time of the honest peers. Auditors that lie (``yes``, ``accuse``) begin first: they are asked once they are proven, and only then
the others begin. With --every each kind of cheat has a swarm of its own, one after the other.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import ExchangeSection, TrustSection
from manta_swarm.automl.training.settings import first_min_exponent
from manta_swarm.protocol.ledger import Ledger
from tests.network.cheats import KINDS, LIARS
from tests.network.processes import Programs, small_run

_SAMPLES = 16
_POLL_S = 0.5
_AUDITS = ("--audit", "100%")


def cpu_s(pid: int) -> float:
    """Return the CPU's time of a program, and of what it started."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def auditor_cpu_s(programs: Programs) -> float:
    """Return the CPU's time of the auditor beside the aggregator, since its start."""
    aggregator = psutil.Process(int(programs.status("aggregator")["pid"]))
    auditors = [child for child in aggregator.children(recursive=True) if "--audit-only" in child.cmdline()]
    return sum(cpu_s(auditor.pid) for auditor in auditors)


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
    worked: Counter[bytes] = Counter()

    def look(ledger: Ledger) -> None:
        last[:] = [ledger]
        for listed in ledger.table_at(ledger.round) or ():
            for key in listed.keys:
                first.setdefault(key, ledger.round)
                worked[key] += 1

    verify_directory(directory, on_round=look)
    reputation = last[0].reputation
    for name, key in keys.items():
        standing = reputation.standing(key)
        if name in cheats:
            fault = next(iter(standing.faults), None)
            word = "not found out" if fault is None else f"{fault.reason} {fault.round - first[key] + 1} rounds after its first"
            word += ", guilty" if key in reputation.guilty else ""
        else:
            word = "ACCUSED" if standing.faults else f"{reputation.good[key]} contributions found good"
        pending = standing.credit - standing.paid
        line = f"{name}: {word}; {worked[key]} contributions, paid {standing.paid}, pending {pending}"
        results.say(line, peer=name, found=word, contributions=worked[key], paid=standing.paid, pending=pending)
    audits = sum(len(audit.verdicts) for audit in reputation.audits.values())
    results.say(f"{last[0].round} rounds; {audits} verdicts on contributions that are not paid yet", rounds=last[0].round, verdicts=audits)


def play(arguments: argparse.Namespace, cheats: list[str]) -> None:
    """Run one swarm."""
    honest = [f"honest-{number}" for number in range(arguments.honest)]
    own, open_s = (
        _SAMPLES * arguments.microbatches,
        arguments.open_s,
    )  # who has that much waits for the round's end: audits have a part of this machine
    times = {"first_open_s": open_s, "min_open_s": open_s, "max_open_s": 4 * open_s}
    config = small_run(rounds=10_000, target_batch=own * (len(cheats) + len(honest)), weight_cap=own, max_claim_samples=own, **times)
    exchange = ExchangeSection(
        local_steps=arguments.local_steps, codec=arguments.codec, first_min_exponent=first_min_exponent(arguments.codec)
    )
    trust = TrustSection(
        mode="audited",
        proven_after=arguments.proven_after,
        audit_percent=arguments.audit_percent,
        newcomer_percent=arguments.newcomer_percent,
        kept_rounds=arguments.kept_rounds,
        pending_rounds=arguments.pending_rounds,
    )
    own = config.aggregator.model_copy(update={"audit_share": arguments.audit_share})
    config = config.model_copy(update={"trust": trust, "exchange": exchange, "aggregator": own})
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
        peers_s = sum(cpu_s(int(programs.status(name)["pid"])) for name in honest)
        auditors_s = auditor_cpu_s(programs)
        for name in (*honest, "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
        told(Path(folder) / "aggregator", keys, cheats)
    results.say(f"audits, as the aggregator says: {audits}", audits=audits)
    results.say(
        f"CPU: the operator's auditor with its start {auditors_s:.1f} s, the {len(honest)} honest peers with theirs {peers_s:.1f} s",
        auditor_cpu_s=auditors_s,
        honest_cpu_s=peers_s,
    )


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--cheats", default="noise,half,poison,silent", metavar="NAMES", help=", ".join(KINDS))
    parser.add_argument("--honest", type=int, default=4, metavar="N", help="peers that are")
    parser.add_argument("--volunteers", type=int, default=0, metavar="N", help="of these, that audit")
    parser.add_argument("--proven-after", type=int, default=2, metavar="N", help="contributions found good")
    parser.add_argument("--audit-percent", type=int, default=100, metavar="N")
    parser.add_argument("--newcomer-percent", type=int, default=100, metavar="N")
    parser.add_argument("--kept-rounds", type=int, default=4, metavar="N")
    parser.add_argument("--pending-rounds", type=int, default=8, metavar="N")
    parser.add_argument("--open-s", type=float, default=6.0, metavar="S", help="how long a round is open at least")
    parser.add_argument("--audit-share", type=float, default=1.0, metavar="PART", help="of a core's time, that the operator's auditor has")
    parser.add_argument("--rounds", type=int, default=12, metavar="N")
    parser.add_argument("--local-steps", type=int, default=1, metavar="H")
    parser.add_argument("--codec", default="int16", help="as in [exchange] of a run file")
    parser.add_argument("--microbatches", type=int, default=8, metavar="N", help="of a peer in a round, at most")
    parser.add_argument("--every", action="store_true", help="each cheat in a swarm of its own")
    arguments = parser.parse_args()
    cheats = [name for name in arguments.cheats.split(",") if name]
    for some in [[cheat] for cheat in cheats] if arguments.every else [cheats]:
        print(f"-- {', '.join(some) or 'no cheats'}", flush=True)
        results.keep(cheats=some)
        play(arguments, some)
    results.write(arguments)


if __name__ == "__main__":
    main()
