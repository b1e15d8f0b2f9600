"""When a peer begins a microbatch: whether there is time for another one, and whether work on the newest base may begin already."""

from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.feature import Features
from manta_swarm.peer.workers.pool import WorkerPool
from manta_swarm.protocol.rounds import Phase


class Timing:
    """One peer's, by what it measured so far."""

    def __init__(self, context: RunContext, progress: Progress, pool: WorkerPool, features: Features) -> None:
        """Prepare.

        Args:
            context: of the run.
            progress: says how long the round still has, and how long things take.
            pool: says who computes.
            features: may leave the work to others.
        """
        self._context = context
        self._progress = progress
        self._pool = pool
        self._features = features
        self._machine = progress.machine
        self._pace = progress.pace

    def works_ahead(self) -> bool:
        """With an older contribution in this round, work on the newest base may begin if it is not done before the commit anyway."""
        return self.may_work_ahead() and self.spare_s <= 0

    @property
    def spare_s(self) -> float:
        """Seconds until headers of this round are closed, less what a microbatch takes."""
        return (self._pace.left_ms(self._context.clock.now_ms()) - self._pace.microbatch_ms) / 1000

    def may_work_ahead(self) -> bool:
        """Only where a round has no time for two microbatches. Whoever is faster waits for the commit, and then has a whole round:
        a microbatch begun near the deadline would be late again, and so on in every round, one microbatch in each.
        """
        return self._machine.may_work_ahead and 2 * self._pace.microbatch_ms > self._progress.open_ms(self._context.manifest)

    def may_start(self, step: int, microbatches: int, ends: float | None, worker: int) -> bool:
        """Return whether a worker is to start another microbatch of a local step; a step that was begun has a microbatch at least.

        Args:
            step: from 0.
            microbatches: of it so far.
            ends: when it ends as its cohort says; None: no cohort does.
            worker: its number.
        """
        machine, is_leaving, workers = self._machine, self._progress.leaving.is_set(), self._pool.present()
        if step and not microbatches:
            return machine.samples > 0 and not (is_leaving and not workers)
        if is_leaving or self._pool.is_paused or machine.is_overdue or not (machine.phase is Phase.WORKING or self.works_ahead()):
            return False
        if microbatches and self._features.is_lease_only:
            return False
        is_awaited = self._progress.promises.listed_in == machine.newest.round > 0
        steps = self._context.manifest.exchange.local_steps
        now_ms = self._context.clock.now_ms()
        return self._pace.may_start_microbatch(
            now_ms, microbatches, is_awaited=is_awaited, step=step, steps=steps, ends=ends, worker=worker, workers=workers
        )
