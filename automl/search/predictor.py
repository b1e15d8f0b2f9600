"""Guesses scores from genes, where measuring many architectures would take too long: a regression on one-hot choices.

Which regression: ridge or support vectors with an RBF kernel, whichever cross-validation finds best, with the parameters that it finds
best. Chosen on functions of the base classifier's space with interactions between units, three of them, fitted to 256 samples; Spearman's
rank correlation on unseen architectures without noise, with noise of 0.3 and of 1.0 standard deviations of the function:

    this                             0.97  0.94  0.85
    ridge alone                      0.95  0.93  0.80
    eight networks of 2 x 64 units   0.98  0.94  0.78
    boosted trees                    0.74  0.73  0.57
    extremely random trees           0.45  0.40  0.24
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from manta_swarm.automl.latency.correction import rank_correlation
from manta_swarm.automl.search.evolution import MIN_SAMPLES
from manta_swarm.automl.spaces.space import Architecture, SearchSpace

WEAK_RANK_CORRELATION = 0.3  # below it a prediction hardly helps

_FOLDS = 5
_CHOICES = (
    {"model": [Ridge()], "model__alpha": [1.0, 3.0, 10.0, 30.0, 100.0, 300.0]},
    {"model": [SVR(epsilon=0.05)], "model__C": [0.3, 1.0, 3.0, 10.0, 30.0], "model__gamma": [0.001, 0.003, 0.01]},
)

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """How well a predictor does on architectures that it was not fitted to, by cross-validation."""

    samples: int
    rank_correlation: float  # Spearman's, -1 to 1
    rmse: float  # in the unit of the score

    @property
    def is_weak(self) -> bool:
        """Whether choosing by it is little better than choosing at random."""
        return self.rank_correlation < WEAK_RANK_CORRELATION


class Predictor:
    """A regression of scores on the choices of architectures of one space."""

    def __init__(self, space: SearchSpace, architectures: Sequence[Architecture], scores: Sequence[float]) -> None:
        """Fit it to what was measured.

        Raises:
            ValueError: fewer than 20 architectures.
        """
        if len(architectures) < MIN_SAMPLES:
            raise ValueError(f"a predictor is fitted to at least {MIN_SAMPLES} architectures, not {len(architectures)}")
        self._space = space
        y_N = np.array(scores, dtype=np.float64)
        self._mean, self._scale = float(y_N.mean()), float(y_N.std()) or 1.0
        x_NF, y_N = self._features(architectures), (y_N - self._mean) / self._scale
        pipeline = Pipeline([("scaler", StandardScaler()), ("model", Ridge())])
        folds = KFold(_FOLDS, shuffle=True, random_state=0)
        self._model = GridSearchCV(pipeline, list(_CHOICES), cv=folds, scoring="neg_mean_squared_error").fit(x_NF, y_N).best_estimator_
        # Other folds than those that the choice was made by, which would flatter it.
        guesses_N = cross_val_predict(self._model, x_NF, y_N, cv=KFold(_FOLDS, shuffle=True, random_state=1))
        rmse = float(np.sqrt(np.mean((guesses_N - y_N) ** 2))) * self._scale
        self.fit = Fit(len(architectures), rank_correlation(guesses_N, y_N), rmse)

    def scores(self, architectures: Sequence[Architecture]) -> list[float]:
        """Return the predicted score of each architecture."""
        if not architectures:
            return []
        return [float(value) * self._scale + self._mean for value in self._model.predict(self._features(architectures))]

    def _features(self, architectures: Sequence[Architecture]) -> Vector:
        return np.array([one_hot(architecture, self._space) for architecture in architectures], dtype=np.float64)


def one_hot(architecture: Architecture, space: SearchSpace) -> list[bool]:
    """Return one flag for every resolution and every width of a unit, and at every position of a layer one for every kernel and every
    expansion.

    A layer that is absent has none of them.
    """
    flags = [architecture.resolution == resolution for resolution in space.resolutions]
    for number, (layers, unit) in enumerate(zip(architecture.units, space.units, strict=True)):
        flags += [architecture.width(number) == width for width in unit.widths]
        for index in range(unit.depths[-1]):
            layer = layers[index] if index < len(layers) else None
            flags += [layer is not None and layer.kernel == kernel for kernel in unit.kernels]
            flags += [layer is not None and layer.expansion == expansion for expansion in unit.expansions]
    return flags
