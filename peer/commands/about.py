"""manta-peer about: what is downloaded, stored and sent, plainly; with the sizes of a run, where one is looked at.

The sizes are sums over the run's manifest (``protocol.footprint``), of a peer that hands in alone.
"""

from collections.abc import Iterator
from pathlib import Path

from manta_swarm.peer.config import PeerConfig
from manta_swarm.protocol.admission import INVITATION, LIST, OPEN
from manta_swarm.protocol.footprint import ExpectedTable, PeerDisk, Sizes, data_bytes, in_words, peer_disk, round_traffic, vectors_rounds
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Round

_GENERAL = """\
Manta lends this computer to a run that trains a neural network. No account, no wallet, no root; nothing is bought or sold.

Downloaded, from the run's log and from other peers, each piece believed once it has the digest that the log names:
  - the run's description (a few kB), and the state of the network when you join
  - the training data, where the run lets them travel in shards; else they come with a library or from a folder of yours
  - in each round the others' contributions, or their mean, or the state: whatever is fewest bytes
  - in a run with audits, only with --audit: what others' work rests on, while it is computed again
  - no program and no code, ever

Stored, in {directory}:
  - identity.key: your key, to which your credit belongs. Back it up: manta-peer identity backup FILE
  - your settings and limits, the run joined last, the newest contribution and what was left out of it, and where the peer stands
  - a payout receipt of some kB for each round that counted you, 64 MiB of them at most
  - the training data, where they travel: in its folder data, or where --data-root says; --data-limit bounds them
  - in a run with audits what they may ask of your work: of the newest rounds, and for longer of those that they draw; by far the
    most, hundreds of MB in many runs
  - beside it a token of a few bytes that your peers on this computer share. The network itself is in memory alone.

Sent:
  - to the run's log, and public for ever: your key, your cohort's name, and of each round how many pieces of work you did,
    how long one takes, and digests of what came of them
  - to the log and other peers: your contribution of each round, few-bit numbers that say how the network should change
  - in a run with audits, to the operators and to whoever audits: of the contributions that they draw what these rest on
  - to other peers: that you are there, which round you hold, how far away others are; your address, as whoever calls anybody shows it;
    and pieces of what you downloaded, as others give them to you
  - a latency table of this device, only with --latency-table; of images of your own what docs/volunteers.md says, only with --private-data

Not sent: files, names, what else runs here, where you are. Nobody can start anything on this computer.
Limits: manta-peer limits --help. To end it: manta-peer leave; then delete the folder, and nothing is left."""


_ADMISSIONS = {OPEN: "everybody", INVITATION: "invited peers alone", LIST: "the peers that its operator listed, and nobody else,"}


def general_lines(directory: Path) -> list[str]:
    """Return what holds in every run."""
    return _GENERAL.format(directory=directory).splitlines()


def lines_of_run(manifest: Manifest, run: bytes, sizes: Sizes, newest: Round | None, config: PeerConfig) -> Iterator[str]:
    """Yield what a run comes to.

    Args:
        manifest: the run's.
        run: its id.
        sizes: of its supernet.
        newest: its newest round, by which the ones to come are judged; None: there is none, so they are judged by what the manifest allows.
        config: the person's settings.
    """
    exchange, rules = manifest.exchange, manifest.audit_rules
    shortest_s, longest_s = exchange.min_open_ms / 1000, exchange.max_open_ms / 1000
    yield f"The run {manifest.name} ({run.hex()[:16]}), {manifest.num_rounds} rounds of {shortest_s:g} to {longest_s:g} s, says:"
    yield f"  - {_ADMISSIONS[manifest.admission.how]} may take part"
    if len(manifest.operators) > 1:
        yield f"  - {len(manifest.operators)} operators keep its log, of whom {manifest.quorum} have to sign a round before it counts"
    data = f"images of your own, of its classes (--private-data), for {manifest.dataset}" if manifest.is_private else manifest.dataset
    yield f"  - it trains {manifest.supernet} ({sizes.num_weights:,} weights) on {data}"
    table, shards = table_of(manifest, newest), data_bytes(manifest, config.data_limit)
    traffic = round_traffic(exchange, rules, sizes, table)
    with_data = f": the state {in_words(sizes.state)}, training data {in_words(shards)}" if shards else ""
    yield f"  - downloaded once, when you join: {in_words(sizes.state + shards)}{with_data}"
    if manifest.schedule != "sandwich":
        yield f"  - and once more {in_words(sizes.state)}, for the state that later phases learn from"
    yield f"  - {_of_rounds(table, newest)}:"
    yield f"    downloaded: {_each(traffic.fetched, newest)}"
    yield f"    sent: {_each(traffic.sent, newest)}; less if others cannot call you"
    if traffic.brought:
        drawn = f"about {traffic.brought_part:.0%} of yours once you are proven, {in_words(traffic.brought_when_proven)} a round"
        yield f"    sent to audits, too: {in_words(traffic.brought)} of each contribution that they draw: {drawn}"
    yield from _of_disk(manifest, peer_disk(manifest, sizes, table, shards))
    if rules is not None and config.audit:
        brought = in_words(traffic.brought)
        yield f"    and for your audits of others {brought} of a contribution of one peer, more of a cohort's, one at a time"
    yield f"  - in memory: {in_words(2 * sizes.state + 12 * sizes.vector)} or more, beside torch and the data"
    if exchange.local_steps > 1:
        vector = in_words(sizes.vector)
        yield f"  - between two rounds each cohort takes {exchange.local_steps} steps; cohort peers send each other {vector} for each"


def table_of(manifest: Manifest, newest: Round | None) -> ExpectedTable:
    """Return what the next rounds have: what the newest had, or of a run that has none as many contributions as there may be."""
    exchange = manifest.exchange
    if newest is None:
        return ExpectedTable(exchange.max_rows, exchange.first_open_ms / 1000)
    return ExpectedTable(newest.contributions, newest.open_ms / 1000)


def _of_rounds(table: ExpectedTable, newest: Round | None) -> str:
    if newest is None:
        return f"a round, if it has {table.rows} contributions, as many as there may be"
    count = "1 contribution" if table.rows == 1 else f"{table.rows} contributions"
    return f"a round, with {count} as round {newest.round} had, and {newest.open_ms / 1000:g} s as the next one takes"


def _each(num_bytes: int, newest: Round | None) -> str:
    """Return so many bytes a round in words, and an hour, where it is known how long rounds are."""
    each = f"{in_words(num_bytes)} a round"
    return each if newest is None else f"{each}, {in_words(num_bytes * 3_600_000 // newest.open_ms)} an hour"


def _of_disk(manifest: Manifest, disk: PeerDisk) -> Iterator[str]:
    parts = {
        "for audits": disk.vectors,
        "training data": disk.data,
        "your contribution and what was left out of it": disk.signed + disk.residuals,
    }
    shown = ", ".join(f"{what} {in_words(num_bytes)}" for what, num_bytes in parts.items() if num_bytes)
    when = f" once {vectors_rounds(manifest.audit_rules)} rounds are over" if disk.vectors else ""
    yield f"  - on the disk: about {in_words(disk.usual)}{when} ({shown}); and {in_words(disk.payout_receipt)} more a round that counts you"
    yield f"    at most {in_words(disk.most)}"
