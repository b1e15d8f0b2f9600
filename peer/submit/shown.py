"""What a peer's person is told of its contributions."""

from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.submit.promises import Fate, NewCommit, Outcome
from manta_swarm.peer.submit.submitter import Attempt


def show_outcome(board: StatusBoard, outcome: Outcome) -> None:
    """Show what became of a contribution."""
    samples = outcome.sealed.samples
    if outcome.fate is Fate.BROKEN:
        board.add(promises_broken=1)
        board.say(
            f"the log gave an inclusion promise for round {outcome.round} and did not keep it: {samples} samples are not in its table"
        )
    elif outcome.fate is Fate.REPLACED:
        board.add(samples_lost=samples)
        board.say(f"{samples} samples do not count: other work of this peer on the same state does, which its cohort handed in")
    elif outcome.fate is Fate.COUNTED_AFTER_ALL:
        board.add(samples_lost=-samples)
        board.say(f"{samples} samples do count after all: the cohort handed them in, for round {outcome.round}")
    if outcome.is_counted:
        board.counted(outcome.round, samples)


def show_commit(board: StatusBoard, commit: NewCommit, dropped: dict[str, int]) -> None:
    """Show a commit; ``dropped`` are this peer's contributions that came to nothing so far, by reason."""
    entry = commit.entry
    board.add(samples_lost=commit.samples_lost)
    board.committed(
        round_=entry.round,
        state=entry.state,
        contributions=entry.contributions,
        counted=commit.is_counted,
        lost=commit.samples_lost,
    )
    board.update(dropped=dropped, waiting_for="")


def show_lost(board: StatusBoard, attempt: Attempt, dropped: dict[str, int]) -> None:
    """Show that what was handed in comes to nothing, and why; ``dropped`` as for ``show_commit``."""
    board.add(samples_lost=attempt.samples_lost)
    board.update(dropped=dropped)
    board.say(f"{attempt.samples_lost} samples do not count: {attempt.why}")
