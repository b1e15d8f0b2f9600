"""What a peer in a run can be asked to measure, and with what it does: the desk, made of what the peer has."""

from collections.abc import Callable

from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.update import state_from_pieces
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.evaluation.desk import EvaluationDesk, Subject
from manta_swarm.peer.features.evaluation.measurer import Measurer
from manta_swarm.peer.features.shards.session import Held
from manta_swarm.peer.status import StatusBoard
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signing import Identity

_PRIVATE, _ONE_VIEW, _PART = "the run's data are private", "it has one view of the run's data", "it has a part of the run's data"


def desk_of_evaluations(
    config: PeerConfig,
    identity: Identity,
    signed: SignedManifest,
    held: Held,
    num_weights: int,
    board: StatusBoard,
    newest: Callable[[], int],
) -> EvaluationDesk:
    """Return the desk of a peer; it is to be opened, and answers nobody before it was told its limits.

    Args:
        config: the person's settings.
        identity: signs the answers.
        signed: the run's manifest.
        held: has the newest states, and the data.
        num_weights: N.
        board: shows how many architectures were measured.
        newest: the round of the state that is held.
    """
    manifest = signed.open()

    def weights(digest: bytes) -> bytes | None:
        blob = held.shelf.get(digest)
        if blob is None:
            return None
        try:
            return state_from_pieces(blob.pieces, num_weights).parameters.numpy().tobytes()
        except EncodingError:  # a body's or a mean's root
            return None

    async def start() -> Measurer:
        board.say(f"measures networks of this run for others, for {board.status.limits.get('evaluation', '10%')} of the time at most")
        return await Measurer.start(manifest.supernet, manifest.dataset, manifest.data_digest, held.root)

    refusal = _PRIVATE if manifest.is_private else _ONE_VIEW if config.view is not None else _PART if held.train else ""
    subject = Subject(signed.run, manifest.data_digest, space_named(manifest.supernet), newest, weights, refusal)
    return EvaluationDesk(identity, subject, start, on_measured=lambda count: board.update(measured_for_others=count))
