"""How much anybody may ask for in a time: a token bucket for each name, whatever names are, in bounded memory. Pure."""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

MAX_NAMES = 16_384
_NOTHING = 1e-6  # of a request: what is lost in a float


@dataclass
class Rates(Generic[Name]):
    """So many requests of each name at once, and so many a second from then on. Of too many names the oldest is forgotten."""

    a_second: float
    at_once: float
    max_names: int = MAX_NAMES
    _left: OrderedDict[Name, tuple[float, float]] = field(default_factory=OrderedDict)  # how many it may make, and when that was so

    def wait_ms(self, name: Name, now_ms: float, cost: float = 1.0) -> int:
        """Count a request that is worth ``cost`` and return 0; or return after how long it may be made, and count nothing."""
        left, since_ms = self._left.pop(name, (self.at_once, now_ms))
        left = min(left + (now_ms - since_ms) / 1000 * self.a_second, self.at_once)
        missing = min(cost, self.at_once) - left
        self._left[name] = (left - cost if missing <= _NOTHING else left, now_ms)
        if len(self._left) > self.max_names:
            self._left.popitem(last=False)
        return 0 if missing <= _NOTHING else max(1, math.ceil(missing / self.a_second * 1000))

    def owe(self, name: Name, now_ms: float, cost: float) -> None:
        """Count what was done already: later requests wait for it."""
        left, since_ms = self._left.pop(name, (self.at_once, now_ms))
        self._left[name] = (min(left + (now_ms - since_ms) / 1000 * self.a_second, self.at_once) - cost, now_ms)
