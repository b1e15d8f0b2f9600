"""A cohort's local steps: exact updates along its own gradients, from a committed state on until the next exchange.

The optimiser's own steps of ``automl.training.optimizers``, so everybody who has the gradients has the bits. Moments begin at zero, so a
newcomer needs the committed state alone.

Shapes: N all weights of the supernet.
"""

import torch
from torch import Tensor

from manta_swarm.automl.training.optimizers import are_finite, decaying, num_own_moments, own_step
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import State


class LocalSteps:
    """The weights of one cohort in one round, from local step to local step."""

    def __init__(self, state: State, plan: Plan, part: slice = slice(None)) -> None:
        """Begin at a committed state, in the round after it. ``state`` and gradients may have a ``part`` of the weights only."""
        self._base_N = self._weights_N = state.parameters
        self._moments = tuple(torch.zeros_like(state.parameters) for _ in range(num_own_moments(plan.optimizer)))
        self._optimizer = plan.optimizer
        self._rate = plan.learning_rate(state.round + 1)
        decays_N = decaying(plan)
        self._decays_N = None if decays_N is None else decays_N[part]
        self._number = 0
        self._taken = 0

    @property
    def weights(self) -> Tensor:
        """What the next step's microbatches are trained on, (N,) fp32, CPU. Nobody writes into it: a step makes a new one."""
        return self._weights_N

    @property
    def number(self) -> int:
        """How many steps there were."""
        return self._number

    @property
    def taken(self) -> int:
        """How many of them were taken: those that led to finite values."""
        return self._taken

    @torch.no_grad()
    def step(self, gradient: Tensor) -> bool:
        """Make one step along a gradient (N,), the cohort's mean; return whether it was taken.

        A step that would lead to a value that is not finite is not taken: weights and moments stay what they were, and the next step is
        the next one all the same.

        Raises:
            ValueError: the gradient does not fit.
            OwnFault: as ``codec.scaling.check_denormals``.
        """
        if gradient.shape != self._base_N.shape or gradient.dtype != torch.float32 or gradient.device.type != "cpu":
            raise ValueError("a gradient is an fp32 CPU vector as long as the weights")
        self._number += 1
        weights_N, moments = own_step(
            self._weights_N,
            self._moments,
            gradient,
            self._optimizer,
            rate=self._rate,
            number=self._number,
            decays_N=self._decays_N,
        )
        is_taken = are_finite(weights_N, *moments)
        if is_taken:
            self._weights_N, self._moments = weights_N, moments
            self._taken += 1
        return is_taken

    def pass_over(self) -> None:
        """Count a step that is known not to have been taken."""
        self._number += 1

    @torch.no_grad()
    def learnt(self) -> Tensor:
        """Return the weights at the base less those now, (N,) fp32: it stands where a gradient would."""
        return self._base_N - self._weights_N
