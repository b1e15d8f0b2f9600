"""Architectures measured by several processes of this computer, one thread each.

Every process makes an evaluator of its own. Requests and answers go through one pipe per process, whose other end nobody else holds: a
process that dies ends its pipe, so it is noticed at once; and so do the processes notice that the program is gone, however it ended.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType

import torch

from automl.evaluation.samples import Measured
from automl.search.evaluators import Evaluator
from automl.spaces.space import Architecture
from protocol.errors import MantaError, OwnFault

_STOP_S = 10.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read once, when a process loads its libraries

Request = tuple[Architecture, str]


class ProcessEvaluator:
    """An Evaluator that shares the work out; a context manager that leaves no process behind."""

    def __init__(self, make: Callable[[], Evaluator], workers: int) -> None:
        """Start the processes. Each calls ``make``, a function that can be pickled; whatever it raises comes out of ``measure``."""
        if workers < 1:
            raise ValueError("at least one process")
        self._workers: list[_Worker] = []
        try:
            with _quiet_start():
                for _ in range(workers):
                    self._workers.append(_Worker(make))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ProcessEvaluator":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def measure(self, architectures: Sequence[Architecture], part: str) -> Iterator[Measured]:
        """Yield how good each architecture is in the order asked for, whoever was faster; see Evaluator.

        Raises:
            OwnFault: a process has died; all others are stopped.
        """
        if not self._workers:
            raise ValueError("the processes are stopped")
        waiting = list(enumerate(architectures))[::-1]
        ready: dict[int, Measured] = {}
        busy: dict[object, tuple[_Worker, int]] = {}  # by its pipe

        def occupy(worker: _Worker) -> None:
            if waiting:
                index, architecture = waiting.pop()
                busy[worker.pipe] = worker, index
                worker.ask((architecture, part))

        try:
            for worker in self._workers:
                occupy(worker)
            for following in range(len(architectures)):
                while following not in ready:
                    # Without a deadline: nobody knows how long a network takes, and a death is noticed.
                    for pipe in wait([worker.pipe for worker, _ in busy.values()]):
                        worker, index = busy.pop(pipe)
                        ready[index] = worker.answer()
                        occupy(worker)
                yield ready.pop(following)
        finally:
            if busy:  # an error, a Ctrl-C, or nobody wants the rest: the answers would be taken for those to the next question
                self.close()

    def close(self) -> None:
        """Stop the processes, in the middle of their work."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.stop()


class _Worker:
    """One process, seen from the program."""

    def __init__(self, make: Callable[[], Evaluator]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(make, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, request: Request) -> None:
        try:
            self.pipe.send(request)
        except OSError as error:
            raise self._death() from error

    def answer(self) -> Measured:
        try:
            answer: Measured | MantaError = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error
        if isinstance(answer, MantaError):
            raise answer
        return answer

    def stop(self) -> None:
        self.process.join(_STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        self.pipe.close()

    def _death(self) -> OwnFault:
        self.process.join(_STOP_S)
        code = self.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return OwnFault(
            f"a process that measured architectures died ({how}); what is measured is kept: start the same command again, "
            "with fewer --workers if memory was short"
        )


def _serve(make: Callable[[], Evaluator], pipe: Connection) -> None:
    """Answer requests until the program stops asking; what runs in a process of its own."""
    torch.set_num_threads(1)
    evaluator: Evaluator | None = None
    while True:
        try:
            architecture, part = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            evaluator = evaluator or make()
            (measured,) = evaluator.measure([architecture], part)
            answer: Measured | MantaError = measured
        except MantaError as error:
            answer = error
        try:
            pipe.send(answer)
        except OSError:
            return


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Let the processes that are started meanwhile ignore Ctrl-C, which a terminal sends to them too, and use one thread each.

    A signal mask and the environment are inherited at birth, before a process could set anything itself. The tracker of multiprocessing
    is started first: its start would let Ctrl-C through again.
    """
    resource_tracker.ensure_running()
    before = {name: os.environ.get(name) for name in _THREADS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
