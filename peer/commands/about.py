"""manta-peer about: what is downloaded, stored and sent, plainly; with the sizes of a run, where one is looked at."""

from collections.abc import Iterator
from pathlib import Path

from protocol.admission import INVITATION, LIST, OPEN
from protocol.manifest import Manifest

_GENERAL = """\
Manta lends this computer to a run that trains a neural network. No account, no wallet, no root; nothing is bought or sold.

Downloaded, from the run's log and from other peers, each piece believed once it has the digest that the log names:
  - the run's description (a few kB), and the state of the network when you join
  - in each round the others' contributions, or their mean, or the state: whatever is fewest bytes
  - no program and no code, ever. Training data come with a library or from a folder of yours; Manta downloads none.

Stored, in {directory}:
  - identity.key: your key, to which your credit belongs. Back it up: manta-peer identity backup FILE
  - your settings and limits, the run joined last, the newest contribution and what was left out of it, and where the peer stands
  - beside it a token of a few bytes that your peers on this computer share. The network itself is in memory alone.

Sent:
  - to the run's log, and public for ever: your key, your cohort's name, and of each round how many pieces of work you did,
    how long one takes, and digests of what came of them
  - to the log and other peers: your contribution of each round, few-bit numbers that say how the network should change
  - to other peers: that you are there, which round you hold, how far away others are; your address, as whoever calls anybody shows it;
    and pieces of what you downloaded, as others give them to you
  - a latency table of this device, only with --latency-table; of images of your own what docs/volunteers.md says, only with --private-data

Not sent: files, names, what else runs here, where you are. Nobody can start anything on this computer.
Limits: manta-peer limits --help. To end it: manta-peer leave; then delete the folder, and nothing is left."""


_ADMISSIONS = {OPEN: "everybody", INVITATION: "invited peers alone", LIST: "the peers that its operator listed, and nobody else,"}


def general_lines(directory: Path) -> list[str]:
    """Return what holds in every run."""
    return _GENERAL.format(directory=directory).splitlines()


def lines_of_run(manifest: Manifest, run: bytes, num_weights: int, state_bytes: int, body_bytes: int) -> Iterator[str]:
    """Yield what a run comes to.

    Args:
        manifest: the run's.
        run: its id.
        num_weights: of its supernet.
        state_bytes: of a state, with its moments.
        body_bytes: of a peer's contribution, or its cohort's.
    """
    exchange = manifest.exchange
    shortest_s, longest_s = exchange.min_open_ms / 1000, exchange.max_open_ms / 1000
    yield f"  - {_ADMISSIONS[manifest.admission.how]} may take part"
    data = f"images of your own, of its classes (--private-data), for {manifest.dataset}" if manifest.is_private else manifest.dataset
    yield f"The run {manifest.name} ({run.hex()[:16]}), {manifest.num_rounds} rounds of {shortest_s:g} to {longest_s:g} s, says:"
    if len(manifest.operators) > 1:
        yield f"  - {len(manifest.operators)} operators keep its log, of whom {manifest.quorum} have to sign a round before it counts"
    yield f"  - it trains {manifest.supernet} ({num_weights:,} weights) on {data}"
    yield f"  - downloaded when you join: {_size(state_bytes)}"
    yield f"  - sent a round: {_size(body_bytes)} at most to the log, and as much to each peer that asks you for it, if others can call you"
    mean = 4 * num_weights
    yield f"  - downloaded a round: {_size(body_bytes)} for each contribution of others, {_size(mean)} at most"
    yield f"  - in memory: {_size(2 * state_bytes + 12 * mean)} or more, beside torch and the data; on the disk: {_size(body_bytes)}"
    if exchange.local_steps > 1:
        yield f"  - between two rounds each cohort takes {exchange.local_steps} steps; mates send each other {_size(mean)} for each"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 10**6 else f"{count / 1e3:.0f} kB"
