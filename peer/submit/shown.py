"""What a peer's person is told of its contributions."""

from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.submit.promises import Fate, NewCommit, Outcome
from manta_swarm.peer.submit.submitter import Attempt


def show_outcome(live_status: LiveStatus, outcome: Outcome) -> None:
    """Show what became of a contribution."""
    samples = outcome.signed.samples
    if outcome.fate is Fate.BROKEN:
        live_status.add(promises_broken=1)
        live_status.say(
            f"the log gave an inclusion promise for round {outcome.round} and did not keep it: {samples} samples are not in its table"
        )
    elif outcome.fate is Fate.REPLACED:
        live_status.add(samples_lost=samples)
        live_status.say(f"{samples} samples do not count: other work of this peer on the same state does, which its cohort handed in")
    elif outcome.fate is Fate.COUNTED_AFTER_ALL:
        live_status.add(samples_lost=-samples)
        live_status.say(f"{samples} samples do count after all: the cohort handed them in, for round {outcome.round}")
    if outcome.is_counted:
        live_status.counted(outcome.round, samples)


def show_commit(live_status: LiveStatus, commit: NewCommit, dropped: dict[str, int]) -> None:
    """Show a commit; ``dropped`` are this peer's contributions that came to nothing so far, by reason."""
    entry = commit.entry
    live_status.add(samples_lost=commit.samples_lost)
    live_status.committed(
        round_=entry.round,
        state=entry.state,
        contributions=entry.contributions,
        counted=commit.is_counted,
        lost=commit.samples_lost,
    )
    live_status.update(dropped=dropped, waiting_for="")


def show_lost(live_status: LiveStatus, attempt: Attempt, dropped: dict[str, int]) -> None:
    """Show that what was handed in comes to nothing, and why; ``dropped`` as for ``show_commit``."""
    live_status.add(samples_lost=attempt.samples_lost)
    live_status.update(dropped=dropped)
    live_status.say(f"{attempt.samples_lost} samples do not count: {attempt.why}")
