"""The usual settings of a training: one table, for runs of the swarm and for one process alike."""

from dataclasses import dataclass, replace

from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.manifest import Optimizer, Recipe

_THIN = {"classification": (5, "topk-192-4", 95), "stereo": (5, "topk-192-4", 95)}  # local steps, codec, percent of the residual

_MANY_PASSES = 50  # over the data, from which on images that were changed teach more than those that were seen before
_PASSES_TO_TEACH = 20  # from which on the largest network has learnt so much that the others gain by its answers
_TAUGHT_PERCENT = 50  # all of the rounds is no better, and takes longer


@dataclass(frozen=True, slots=True)
class Settings:
    """What trains a task's tiny supernet on its usual data in minutes."""

    supernet: str
    dataset: str
    num_rounds: int  # exchanges between cohorts
    microbatch_samples: int
    target_batch: int  # samples of one round, over all cohorts and local steps
    optimizer: Optimizer
    local_steps: int = 1  # of one round
    codec: str = "int16"  # of what cohorts exchange (``protocol.exchange.codec_named``)
    residual_percent: int = 100  # of a residual that is added to the next contribution; only sparse codecs leave any

    def with_local_steps(self, local_steps: int) -> "Settings":
        """Return settings of as many updates and samples in all, so many of them in each round."""
        updates, batch = self.num_rounds * self.local_steps, self.target_batch // self.local_steps
        return replace(self, num_rounds=-(-updates // local_steps), target_batch=batch * local_steps, local_steps=local_steps)


_SETTINGS = {
    "classification": Settings(
        "classifier-tiny", "digits", 200, 32, 512, Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.05", 20, "0.9", "0.5")
    ),
    "stereo": Settings(
        "stereo-tiny", "layers", 300, 8, 32, Optimizer("adamw", "0.01", "0.9", "0.99", "0.00000001", "0.05", 20, "0.9", "0.5")
    ),
}
TASKS = tuple(_SETTINGS)


def recipe_for(task: str, num_train: int, samples: int) -> Recipe:
    """Return the usual recipe of a training of so many samples, drawn from ``num_train``: benchmarks/accuracy.py is where it comes from.

    Pairs of views are always seen in changing light: two cameras never see the same. Only a sandwich is taught.
    """
    if task == "stereo":
        return Recipe()
    percent = 100 if samples > _MANY_PASSES * num_train else 0
    return Recipe(percent, percent, taught_percent=_TAUGHT_PERCENT if samples > _PASSES_TO_TEACH * num_train else 0)


def first_min_exponent(codec: str) -> int:
    """Return the min exponent that a run begins with: values up to 4 fit, whatever the codec. It adapts by itself."""
    return -17 - codec_named(codec).bits


def usual(task: str) -> Settings:
    """Return the usual settings of ``task``, for peers near each other: each update is an exchange of whole vectors."""
    return _SETTINGS[task]


def thin(task: str) -> Settings:
    """Return the settings of ``task`` for strangers over the internet: as many updates and samples, hardly any traffic.

    benchmarks/local_steps.py is where they come from.
    """
    local_steps, codec, residual_percent = _THIN[task]
    return replace(usual(task).with_local_steps(local_steps), codec=codec, residual_percent=residual_percent)
