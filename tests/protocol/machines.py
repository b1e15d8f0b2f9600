"""A peer's machine in every state that the tests begin with, and what its cohort and the log hand it."""

from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Claim, Header, InclusionPromise, Round
from manta_swarm.protocol.rounds import CommitRef, RoundMachine
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from tests.claim_steps import steps_of
from tests.contributions import listing
from tests.runs import FixedTrainingSpec, manifest_of

OPERATOR, PEER, OTHER = (Identity(sha256(name)) for name in (b"operator", b"peer", b"other"))
SIGNED_MANIFEST = SignedManifest.sign(manifest_of(OPERATOR, num_rounds=8), OPERATOR)
MANIFEST, RUN = SIGNED_MANIFEST.open(), SIGNED_MANIFEST.run
START = CommitRef.start(MANIFEST, RUN)
MICROBATCH = MANIFEST.microbatch_samples


def history(count: int, name: bytes = b"") -> list[Round]:
    """The first rounds of a run, or of another one that begins like it."""
    rounds: list[Round] = []
    for number in range(1, count + 1):
        base = CommitRef.after(rounds[-1]).commit if rounds else RUN
        table, mean, state = (sha256(b"%s %d" % (what + name, number)) for what in (b"table", b"mean", b"state"))
        rounds.append(Round(RUN, number, base, 2 * number, 1, table, mean, state, (), number - 32, 1_000))
    return rounds


ROUNDS = history(8)
COMMIT_REFS = [START, *map(CommitRef.after, ROUNDS)]


def claim_of(
    base: CommitRef = START, microbatches: int = 1, peer: Identity = PEER, run: bytes = RUN, founder: Identity | None = None
) -> Signed[Claim]:
    key, root = peer.public_key, sha256(b"work on %d" % base.round)
    convener = (founder or peer).public_key
    steps = steps_of((microbatches, 0), base.commit, key)
    return Signed.sign(Claim(run, base.round + 1, base.commit, key, key, convener, "home", steps, (microbatches, 0), root, b"", 10), peer)


def header_of(base: CommitRef = START, microbatches: int = 1, peer: Identity = PEER, run: bytes = RUN) -> Header:
    return listing([claim_of(base, microbatches, peer, run)], peer)


def together_of(base: CommitRef = START, microbatches: int = 1, founder: Identity = OTHER) -> Header:
    """A cohort's, with the claim of ``header_of``."""
    return listing([claim_of(base, microbatches), claim_of(base, 3, OTHER, founder=founder)], founder)


def inclusion_promise_of(header: Header, round: int, run: bytes = RUN) -> InclusionPromise:
    return InclusionPromise(run, round, header.contribution.digest)


def machine(held: CommitRef | None = START, sorts: frozenset[int] = frozenset()) -> RoundMachine:
    return RoundMachine(MANIFEST, RUN, PEER.public_key, FixedTrainingSpec(sorts=sorts), held)


def trained(microbatches: int = 1, held: CommitRef = START, sorts: frozenset[int] = frozenset()) -> RoundMachine:
    one = machine(held, sorts)
    for _ in range(microbatches):
        one.microbatch_started()
        assert one.microbatch_trained(MICROBATCH)
    return one


def signed(microbatches: int = 1, held: CommitRef = START, sorts: frozenset[int] = frozenset()) -> RoundMachine:
    one = trained(microbatches, held, sorts)
    assert one.sign(header_of(held, microbatches))
    return one


def promised(round: int = 1, held: CommitRef = START) -> RoundMachine:
    one = signed(held=held)
    one.promised(inclusion_promise_of(header_of(held), round))
    return one


def aged(round: int = 3) -> RoundMachine:
    """Return a machine with work of round 1 that has an inclusion promise for ``round``, and with the state of round 2."""
    one = signed()
    for number in (1, 2):
        learn(one, number)
    one.promised(inclusion_promise_of(header_of(), round))
    one.caught_up(COMMIT_REFS[2].state)
    return one


def behind() -> RoundMachine:
    one = machine()
    learn(one, 1)
    return one


def finished() -> RoundMachine:
    one = machine(COMMIT_REFS[7])
    learn(one, 8)
    one.caught_up(COMMIT_REFS[8].state)
    return one


def learn(one: RoundMachine, *rounds: int) -> list[int]:
    """Commits come, one after the other; what each costs in samples."""
    return [one.committed(ROUNDS[number - 1]).samples_lost for number in rounds]
