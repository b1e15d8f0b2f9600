"""A log with audits of real lots, and peers that hand out the vectors that their claims name: for tests, in one process."""

from collections.abc import Sequence
from pathlib import Path

from protocol.audits import HOLDS
from protocol.evidence import pages
from protocol.signing import Identity, PublicKey
from swarm.vectors import VectorsFolder, serve_vectors
from tests.aggregator import real_run
from tests.aggregator.audits.real_lots import AUDITED, ONE, OTHER, THIRD, Scene
from tests.aggregator.audits.vector_lots import Share, Together, worked

STEPPED = AUDITED.model_copy(
    update={
        "exchange": AUDITED.exchange.model_copy(update={"local_steps": 2, "codec": "topk-512-4"}),
        "round": AUDITED.round.model_copy(update={"max_claim_samples": 32 * 64}),
    }
)
WHOLES = STEPPED.model_copy(update={"trust": STEPPED.trust.model_copy(update={"whole_percent": 100})})


class VectorScene(Scene):
    """A log with audits, and peers that hand their vectors out."""

    def work(self, *peers: Identity, **changes: object) -> Together:
        assert self.run.follower.state is not None
        return worked(self.run.log.ledger, peers, self.run.follower.state, **changes)  # type: ignore[arg-type]

    def commit_all(self, *works: Together) -> None:
        real_run.commit(self.run, sorted((work.made for work in works), key=lambda made: made.peer.public_key))
        self.audits.committed()

    def go_on(self, *peers: Identity, extras: Sequence[bytes] = ()) -> None:
        """Commit a round of these without any training; nobody has records of it."""
        made = [real_run.made(self.run.log.ledger, peer, cohort="here") for peer in sorted(peers, key=lambda peer: peer.public_key)]
        real_run.commit(self.run, made, extras=extras)
        self.audits.committed()

    def give_all(self, *works: Together) -> None:
        for share in self.shares(*works):
            for page in pages(share.claim, share.records):
                self.folder.keep(page)

    @staticmethod
    def shares(*works: Together) -> list[Share]:
        return [share for work in works for share in work.shares]

    async def show(self, directory: Path, *works: Together, without: Sequence[Identity] = ()) -> None:
        """Let all of them hand out their vectors, but for some, who have none."""
        for share in self.shares(*works):
            assert share.claim is not None
            own = VectorsFolder(directory / share.peer.public_key.hex(), kept_rounds=8, max_bytes=1 << 30)
            for digest, vector in () if share.peer in without else share.vectors.items():
                own.keep(share.claim.open().round, share.claim.digest, digest, vector)
            await serve_vectors(self.network.endpoint(PublicKey(share.peer.public_key)), own)

    def against(self) -> dict[bytes, set[tuple[str, str]]]:
        """Return what was found against whom."""
        found = {peer.public_key: {each for each in self.found(peer) if each[1] != HOLDS} for peer in (ONE, OTHER, THIRD)}
        return {key: each for key, each in found.items() if each}

    def is_quiet(self, *works: Together) -> bool:
        """Whether nothing is open any more of these."""
        claims = [share.claim.digest for share in self.shares(*works) if share.claim is not None]
        return self.audits.rounds_asked > 0 and not any(claim in self.audits._open for claim in claims)

    def has_asked(self, rounds: int) -> bool:
        """Whether keys were asked after so many rounds, and all that can be found without their answer has been.

        A claim whose lot is still being computed is not given up; rounds in which nobody trains would be over before that.
        """
        open_ = self.audits._open.values()
        busy = any(one.jobs or any(self.audits._shown.is_ready(one, each) for each in one.questions) for one in open_)
        return self.audits.rounds_asked >= rounds and not busy

    def is_deep(self) -> bool:
        """Whether vectors are wanted since projections do not fit."""
        return any(one.is_deep for one in self.audits._open.values())
