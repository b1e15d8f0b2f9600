"""Vectors, for docs/verifier.py: how bodies are coded, and what they weigh (§12 of docs/protocol.md); which architectures a round trains,
and what they cost (§14, §7); where each weight is in the flat vector, and which of them an architecture uses (§15, §16); and the exact
update (§16 of docs/training.md).

Imports nothing of Manta's. What is wrong in bytes or in a manifest's prices is a ValueError.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from math import isqrt, prod
from types import SimpleNamespace

import numpy as np

# §12 Bodies

CHUNK = 4096


class Codec:
    """How bodies are coded."""

    def __init__(self, name: str) -> None:
        self.is_sparse = name.startswith("topk")
        self.kept, self.bits = map(int, name.split("-")[1:]) if self.is_sparse else (CHUNK, int(name[3:]))
        self.window, self.limit = 24 if self.is_sparse else 20, 2 ** (self.bits - 1) - 1

    def strings(self, n: int) -> tuple[int, int, list[int]]:
        """k, l, and of each of the strings that follow the exponent of a chunk of n values how many bits it has."""
        k = -(-self.kept * n // CHUNK)
        low = (n // k).bit_length() - 1
        return k, low, [k * low, k + ((n - 1) >> low), k * self.bits] if self.is_sparse else [n * self.bits]

    def chunk_bytes(self, n: int) -> int:
        return 1 + sum(-(-bits // 8) for bits in self.strings(n)[2])

    def chunk(self, data: bytes, n: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Exponent, positions and integers of a chunk.

        Raises:
            ValueError: these are not the bytes that its values are coded to.
        """
        (k, low, sizes), e, at, strings = self.strings(n), data[0], 1, []
        positions, wrong = np.arange(k), e >= self.window
        if not self.is_sparse:
            q = np.frombuffer(data, f"<i{self.bits // 8}", n, 1).astype(np.int64)
        else:
            for bits in sizes:
                string = np.unpackbits(np.frombuffer(data, np.uint8, -(-bits // 8), at), bitorder="little")
                strings, at, wrong = [*strings, string[:bits].astype(np.int64)], at + -(-bits // 8), wrong or string[bits:].any()
            if wrong or (high := np.flatnonzero(strings[1])).size != k:
                raise ValueError("an exponent beyond its range, a bit after a string, or other than k bits of the high string")
            positions = ((high - positions) << low) + strings[0].reshape(k, low) @ (1 << np.arange(low))
            q = strings[2].reshape(k, self.bits) @ (1 << np.arange(self.bits)) - self.limit
            if (np.diff(positions) <= 0).any() or positions[-1] >= n or (q[positions != np.arange(k)] == 0).any():
                raise ValueError("positions that do not ascend, or a zero that is not at the lowest of them")
        if wrong or (np.abs(q) > self.limit).any() or (e > 0 and np.abs(q).max() <= self.limit // 2):
            raise ValueError("an exponent or an integer beyond its range, or an exponent that is larger than it needs")
        return e, positions, q


@dataclass(frozen=True)
class Body:
    """Of each integer of a body the place, the exponent and the value; the sum of (q 2^e)^2, exact; and the largest exponent."""

    places: np.ndarray
    exponents: np.ndarray
    integers: np.ndarray
    norm: int
    highest: int
    groups: list[bytes]


def open_body(codec: Codec, data: bytes, n: int) -> Body:
    """The body of n values that has these bytes.

    Raises:
        ValueError: no body has them.
    """
    sizes = [min(CHUNK, n - start) for start in range(0, n, CHUNK)]
    if len(data) != sum(map(codec.chunk_bytes, sizes)):
        raise ValueError("another length")
    whole, parts, norm = codec.chunk_bytes(CHUNK), [], 0
    for at, size in enumerate(sizes):
        e, positions, q = codec.chunk(data[at * whole : at * whole + codec.chunk_bytes(size)], size)
        parts.append((positions + at * CHUNK, np.full(len(q), e, np.int64), q))
        norm += int((q * q).sum()) << 2 * e
    places, exponents, integers = map(np.concatenate, zip(*parts, strict=True))
    groups = [data[start : start + 64 * whole] for start in range(0, len(data), 64 * whole)]
    return Body(places, exponents, integers, norm, int(exponents.max()), groups)


# §12 What contributions weigh in a mean


def median(pairs: list[tuple[int, int]]) -> int:
    """The lower weighted median of (value, weight)."""
    half, below = -(-sum(weight for _, weight in pairs) // 2), accumulate(weight for _, weight in sorted(pairs))
    return next(value for (value, _), weight in zip(sorted(pairs), below, strict=True) if weight >= half)


def shifted(value: int, by: int) -> int:
    return value << by if by >= 0 else value >> -by


def weights_in_mean(rows) -> list[int]:
    """Of contributions, by samples and age; all samples of unproven keys together weigh at most a quarter of the proven ones."""
    g = [9**row.age * 10 ** (4 - row.age) for row in rows]
    q = [each * sum(s for s, proven in zip(row.samples, row.proven, strict=True) if not proven) for each, row in zip(g, rows, strict=True)]
    p = [each * sum(row.samples) - less for each, row, less in zip(g, rows, q, strict=True)]
    is_capped = 0 < sum(p) < 4 * sum(q)
    u = [a * 4 * sum(q) + b * sum(p) if is_capped else a + b for a, b in zip(p, q, strict=True)]
    return [max(int(a > 0 or not is_capped), each * 65535 // max(u)) for a, each in zip(p, u, strict=True)]


# §7 What an architecture costs. §14 Which architectures a round asks for. An architecture is a dictionary of its choices, in order: "r",
# and of each unit from 1 "u2:w" (its width, if that is a choice), "u2:d" (its depth), and of each layer "u2.0:k" and "u2.0:e".


def text_of(a: dict[str, int]) -> str:
    genes: list[str] = []
    for slot, value in a.items():
        if slot.endswith(":e"):
            genes[-1] += f"e{value}"
        elif not slot.endswith(":d"):
            genes.append(f"{slot}{value}")
    return " ".join(genes)


def architecture_cost(text: str, prices: dict[str, int]) -> int:
    """§7: the sum of the genes' prices."""
    first, *others = text.split(" ")
    total, widths, used = 0, [], set()

    def price(*keys: str) -> int:
        found = next((each for each in keys if each in prices), None)
        if found is None:
            raise ValueError(f"no price for {keys[0]}")
        used.update(found.split(" "))
        return prices[found]

    for gene in others:
        if re.fullmatch(r"[^.:]+:.*", gene):
            widths.append(gene)
        else:
            total += price(*(" ".join([first, *widths[len(widths) - n :], gene]) for n in range(min(2, len(widths)), -1, -1)), gene)
    total += price(*(f"{first} {width}" for width in widths[-1:]), first)
    if not used.issuperset(widths):
        raise ValueError(f"a width that prices nothing in {text}")
    return total


@dataclass(frozen=True)
class Unit:
    """The choices of one unit, ascending; `widths` is empty where all architectures have `width`."""

    width: int
    depths: tuple[int, ...]
    kernels: tuple[int, ...]
    expansions: tuple[int, ...]
    widths: tuple[int, ...] = ()
    has_gate: bool = False


@dataclass(frozen=True)
class Space:
    """A supernet's search space, or a part of it."""

    resolutions: tuple[int, ...]
    units: tuple[Unit, ...]
    stem: int = 16
    channels: int = 3
    classes: int = 0
    disparities: int = 0  # above 0 in stereo
    head: int = 0  # channels of the widening convolution; above 0 where layers are bottlenecks

    def choices(self, slot: str) -> tuple[int, ...]:
        if slot == "r":
            return self.resolutions
        unit = self.units[int(slot[1]) - 1]
        return {"w": unit.widths, "d": unit.depths, "k": unit.kernels, "e": unit.expansions}[slot[-1]]

    def architecture(self, pick) -> dict[str, int]:
        """The architecture with each choice as `pick` takes it, in the order in which random ones are drawn."""
        found = {"r": pick(self.resolutions)}
        for at, unit in enumerate(self.units, 1):
            if unit.widths:
                found[f"u{at}:w"] = pick(unit.widths)
            found[f"u{at}:d"] = pick(unit.depths)
            for layer in range(found[f"u{at}:d"]):
                found |= {f"u{at}.{layer}:k": pick(unit.kernels), f"u{at}.{layer}:e": pick(unit.expansions)}
        return found

    def part(self, kernels: int, depths: int, others: int) -> "Space":
        """The part with so many of each unit's largest kernels, depths, and expansions and widths."""
        units = (
            replace(
                u, kernels=u.kernels[-kernels:], depths=u.depths[-depths:], expansions=u.expansions[-others:], widths=u.widths[-others:]
            )
            for u in self.units
        )
        return replace(self, units=tuple(units))


def space_named(name: str) -> Space:
    """§14: a supernet's space; of a classifier for other data with channels and classes in its name."""
    fitted = re.fullmatch(r"(classifier-[a-z]+)-([13])x([1-9][0-9]{0,5})", name)
    family, channels, classes = fitted.groups() if fitted else (name, None, None)
    low, middle, high, k35, k3 = (1, 2), (2, 3, 4), (3, 4, 6), (3, 5), (3,)
    if family == "classifier-tiny":
        units = [Unit(w, low, k, middle) for w, k in zip((16, 24, 40, 64, 96), (k35, k35, k35, k3, k3), strict=True)]
        space = Space((28,), tuple(units), channels=1, classes=10)
    elif family == "classifier-base":
        widths, depths = ((8, 16), (16, 24), (32, 40), (80, 96, 112), (128, 144, 160)), (low, (1, 2, 3), middle, (3, 4, 5, 6), middle)
        units = [Unit(w[-1], d, (3, 5, 7), high, w, at >= 2) for at, (w, d) in enumerate(zip(widths, depths, strict=True))]
        space = Space((128, 160, 192, 224), (replace(units[0], kernels=k35, expansions=low), *units[1:]), classes=1000, head=960)
    elif family == "stereo-tiny":
        kernels, expansions = (k35, k35, k35, k3, k3, k3), ((1, 2, 3), *[middle] * 5)
        units = [Unit(w, low, k, e) for w, k, e in zip((16, 24, 40, 64, 80, 96), kernels, expansions, strict=True)]
        space = Space((64,), tuple(units), disparities=8)
    elif family == "stereo-base":
        space = Space((320,), tuple(Unit(w, middle, (3, 5, 7), high) for w in (32, 64, 128, 192, 256, 352)), 32, disparities=40)
    else:
        raise ValueError(f"this verifier knows no supernet {name}")
    if not fitted:
        return space
    channels, classes = int(channels), int(classes)
    if not 2 <= classes <= 100_000 or (channels, classes) == (space.channels, space.classes):
        raise ValueError(f"this verifier knows no supernet {name}")
    return replace(space, channels=channels, classes=classes)


def size_of(cohort: str) -> int:
    """§14: the size that a cohort's name ends with; 4: all."""
    found = re.fullmatch(r".+\.size-([1-3])", cohort)
    return int(found[1]) if found else 4


class TrainingSpec:
    """§14 and §16: what each round trains, and at which rate."""

    def __init__(self, m: SimpleNamespace) -> None:
        self.m, self.space, self.prices = m, space_named(m.supernet), dict(m.costs)
        self.phases = [("sandwich", 1, m.num_rounds, self.space)]  # name, first and last round, part of the space
        if m.schedule == "shrinking":
            self.phases = self._shrinking()
        self.teacher_round = self.phases[0][2] if len(self.phases) > 1 else None
        self.costs = lru_cache(4096)(self._costs)

    def _shrinking(self) -> list[tuple[str, int, int, Space]]:
        units, rounds = self.space.units, self.m.num_rounds
        k, d, w = (
            max(len(u.kernels) for u in units),
            max(len(u.depths) for u in units),
            max(len(c) for u in units for c in (u.expansions, u.widths)),
        )
        parts = [("full", 1, 1, 1), ("kernel", k, 1, 1)]
        parts += [("depth", k, n, 1) for n in range(2, d + 1)] + [("width", k, d, n) for n in range(2, w + 1)]
        count, phases, last, percent = Counter(part[0] for part in parts), [], 0, 0.0
        for left, (name, *counts) in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            percent += {"full": 35, "kernel": 15, "depth": 20, "width": 30}[name] / count[name]
            first, last = last + 1, max(last + 1, min(int(rounds * percent / 100), rounds - left)) if left else rounds
            if first <= rounds:
                phases.append((name, first, min(last, rounds), self.space.part(*counts)))
        return phases

    def phase(self, round: int) -> tuple[str, int, int, Space]:
        return next(phase for phase in self.phases if round <= phase[2])

    def sorts_after(self, round: int) -> bool:
        return any(a[2] == round and a[0] != "width" == b[0] for a, b in pairwise(self.phases))

    def rate(self, round: int) -> float:
        (name, first, last, _), o = self.phase(round), self.m.optimizer
        peak = float(o.learning_rate) * (1.0 if name in ("sandwich", "full") else 0.5)
        r, n = round - first + 1, last - first + 1
        warm = n * o.warmup_percent // 100
        return peak * r / warm if r <= warm else peak * (0.01 + (1.0 - 0.01) * ((n - r) / (n - warm)))

    def role(self, round: int, cohort: str) -> int:
        """In model-parallel largest 0, smallest 1, random 2."""
        if self.m.algorithm == "data-parallel":
            return 0
        block, place = divmod(round - 1, 4)
        roles = [0, 1, 2, 2]
        random.Random(f"{self.m.seed}:{cohort}:block:{block}").shuffle(roles)
        return 2 if roles[place] == 0 and size_of(cohort) < 4 else roles[place]

    def architectures(self, round: int, cohort: str) -> list[dict[str, int]]:
        part, seed = self.phase(round)[3], self.m.seed
        largest, smallest = part.architecture(lambda choices: choices[-1]), part.architecture(lambda choices: choices[0])
        if self.m.algorithm == "data-parallel":
            drawn = (
                part.architecture(random.Random(f"{seed}:{round}:{at}").choice) for at in range(4 * min(self.m.exchange.local_steps, 8))
            )
            return [(largest, smallest, each, each)[at % 4] for at, each in enumerate(drawn)]
        if (role := self.role(round, cohort)) < 2:
            return [(largest, smallest)[role]]
        rng = random.Random(f"{seed}:{cohort}:{round}")
        return [self._within(part.architecture(rng.choice), part, size_of(cohort), rng)]

    def _within(self, a: dict[str, int], part: Space, size: int, rng: random.Random) -> dict[str, int]:
        """§14, within a size. (MACs are the manifest's prices, which are those of §15.)"""
        least, most = (self.cost(self.space.architecture(lambda choices, at=at: choices[at])) for at in (0, -1))
        while size < 4 and self.cost(a) > least + (most - least) * size // 4:
            slots = [slot for slot, value in a.items() if value > part.choices(slot)[0]]
            if not slots:
                break
            slot = rng.choice(slots)
            choices = part.choices(slot)
            a = {**a, slot: choices[choices.index(a[slot]) - 1]}
            a = {slot: value for slot, value in a.items() if "." not in slot or int(slot[3 : slot.index(":")]) < a[f"{slot[:2]}:d"]}
        return a

    def cost(self, a: dict[str, int]) -> int:
        return architecture_cost(text_of(a), self.prices)

    def _costs(self, round: int, cohort: str) -> tuple[int, ...]:
        return tuple(map(self.cost, self.architectures(round, cohort)))


# §15 The order of the weights, and what an architecture uses of them. An axis of a weight says what its places stand for: None;
# ("w", unit, None), the channels that a unit from 1 hands on; ("h", unit, layer), those that a layer expands to; ("s", unit, layer), those
# that its gate squeezes to.


@dataclass(frozen=True)
class Weight:
    """One tensor of the supernet."""

    name: str
    shape: tuple[int, ...]
    axes: tuple = ()
    of: tuple[int, int] | None = None  # unit and layer; None: not of a layer
    decays: bool = True


@dataclass(frozen=True)
class Widest:
    """A layer at its widest: channels in, of its K x K convolution and out, the axis of those in, and runs of what it expands to."""

    c: int
    s: int
    w: int
    reads: tuple | None
    blocks: int


@cache
def widest_layers(space: Space) -> dict[tuple[int, int], Widest]:
    c, s, reads, found = space.channels, space.stem, None, {}
    for u, unit in enumerate(space.units, 1):
        if space.disparities and u == 4:
            c = s = space.disparities + space.units[2].width
        for layer in range(unit.depths[-1]):
            found[u, layer] = Widest(c, s, unit.width, reads, c if space.head and layer == 0 and c == s else 1)
            c, s, reads = unit.width, unit.width, ("w", u, None)
    return found


@cache
def weights_of(space: Space) -> list[tuple[slice, Weight]]:
    """All weights with their places in the flat vector."""
    found, last = [], ("w", len(space.units), None)

    def add(name: str, *shape: int, axes: tuple = (), of=None, decays: bool | None = None) -> None:
        found.append(Weight(name, shape, axes or (None,) * len(shape), of, len(shape) > 1 if decays is None else decays))

    def norm(channels: int, axis=None, of=None, name: str = "norm") -> None:
        add(name, channels, axes=(axis,), of=of)
        add("bias", channels, axes=(axis,), of=of)

    if space.classes:
        add("head", space.classes, space.head or space.units[-1].width, axes=(None, None if space.head else last))
        add("bias", space.classes)
    for (u, layer), wide in widest_layers(space).items():
        unit, of, out = space.units[u - 1], (u, layer), ("w", u, None)
        hidden, squeeze, e, k = ("h", u, layer), ("s", u, layer), wide.s * unit.expansions[-1], unit.kernels[-1]
        is_apart = not space.head or layer > 0
        if is_apart:
            add("expand", e, wide.s, axes=(hidden, wide.reads), of=of)
        add("project", wide.w, e, axes=(out, hidden), of=of)
        if space.head and is_apart:
            norm(e, hidden, of)
        rows, fan_in = (wide.s, 1 if wide.c == wide.s else wide.c) if not space.head else (e, 1 if is_apart or wide.blocks > 1 else wide.c)
        axis = hidden if space.head else wide.reads if wide.c == wide.s else None
        add("spatial", rows, fan_in, k, k, axes=(axis, None, None, None), of=of)
        for small in unit.kernels[-2::-1]:
            add(f"transform {small}", small**2, small**2, of=of, decays=False)
        norm(e, hidden, of)
        if unit.has_gate:
            s = 8 * -(-wide.s // 32)
            add("squeeze", s, e, axes=(squeeze, hidden), of=of)
            add("bias", s, axes=(squeeze,), of=of)
            add("excite", e, s, axes=(hidden, squeeze), of=of)
            add("bias", e, axes=(hidden,), of=of)
        norm(wide.w, out, of, "scale")
    if space.head:
        add("widen", space.head, space.units[-1].width, axes=(None, last))
        norm(space.head)
    if space.disparities:
        for shape in stereo_shapes(space):
            add("fixed", *shape)
    placed, start = [], 0
    for weight in sorted(found, key=lambda each: -min(16, prod(each.shape) & -prod(each.shape))):
        placed.append((slice(start, start + prod(weight.shape)), weight))
        start += prod(weight.shape)
    return placed


def stereo_shapes(space: Space):
    """§15: of what stereo has beside its units."""
    w = [unit.width for unit in space.units]
    c, d, h = w[2], space.disparities, max(4, w[1] // 8)
    yield from ((c, c), (c,), (c,), (d,), (d,), (4, w[0]), (4 * h, w[1]), (8, 4, 3, 3), (8,), (8,), (1, 8, 3, 3), (1,), (1, 4, 1, 1))
    came, links = w[5], (w[4], w[3], d + c, w[1], w[0], space.channels)
    for step, (link, b) in enumerate(zip(links, (*(max(8, each // 2) for each in w[4:0:-1]), 8, 4), strict=True)):
        inputs, outputs = b + link + 1 + (0, 0, 0, 2, 3, 3)[step], 2 if step == 3 else 1
        yield from ((came, b, 4, 4), (b,), (b,), (b, inputs, 3, 3), (b,), (b,), (outputs, b, 3, 3), (outputs,))
        came = b


def coverage(space: Space, a: dict[str, int]) -> np.ndarray:
    """§16, coverage: which weights an architecture's network uses."""
    placed, found = weights_of(space), []

    def used(axis, count: int) -> np.ndarray:
        if axis is None or axis[0] == "w":
            return np.arange(count) < (count if axis is None else a.get(f"u{axis[1]}:w", count))
        wide = widest_layers(space)[axis[1:]]
        c = wide.s if wide.reads is None or wide.c != wide.s else a.get(f"u{wide.reads[1]}:w", wide.s)
        if axis[0] == "s":
            return np.arange(count) < 8 * -(-c // 32)
        e = a[f"u{axis[1]}.{axis[2]}:e"]
        if wide.blocks == 1:
            return np.arange(count) < c * e
        return ((np.arange(wide.blocks)[:, None] < c) & (np.arange(count // wide.blocks) < e)).ravel()

    def centre(of: int, side: int) -> np.ndarray:
        return np.abs(np.arange(of) - of // 2) <= side // 2

    for _, weight in placed:
        if weight.of and weight.of[1] >= a[f"u{weight.of[0]}:d"]:
            found.append(np.zeros(weight.shape, bool))
            continue
        mask = np.ones(weight.shape, bool)
        for at, axis in enumerate(weight.axes):
            mask &= used(axis, weight.shape[at]).reshape([-1 if place == at else 1 for place in range(mask.ndim)])
        if weight.of:
            kernels, k = space.units[weight.of[0] - 1].kernels, a[f"u{weight.of[0]}.{weight.of[1]}:k"]
            if weight.name == "spatial" and k < kernels[-1]:
                mask &= (middle := centre(kernels[-1], kernels[-2]))[:, None] & middle
            elif weight.name.startswith("transform"):
                made = int(weight.name.split()[1])
                middle = centre(made, kernels[kernels.index(made) - 1] if k < made else made)
                mask &= (middle[:, None] & middle).reshape(-1, 1) & (k <= made)
        found.append(mask)
    return np.concatenate([mask.ravel() for mask in found])


def sort_channels(vectors: list[np.ndarray], space: Space) -> list[np.ndarray]:
    """§16, sorting: the parameters and the moments with channels in falling order of importance."""
    placed, vectors = weights_of(space), [vector.copy() for vector in vectors]
    parameters = vectors[0].copy()

    def order(rows, blocks: int) -> np.ndarray:
        importance = np.zeros(rows[0].size)
        for row in rows:
            importance = importance + np.abs(row.astype(np.float64))
        of_block = np.argsort(-importance.reshape(blocks, -1), axis=1, kind="stable")
        return (of_block + of_block.shape[1] * np.arange(blocks)[:, None]).ravel()

    def reorder(axis, places: np.ndarray) -> None:
        for where, weight in placed:
            for at in (at for at, each in enumerate(weight.axes) if each == axis):
                for vector in vectors:
                    vector[where] = np.take(vector[where].reshape(weight.shape), places, at).ravel()

    named = {(weight.name, weight.of): parameters[where].reshape(weight.shape) for where, weight in placed if weight.of}
    for (u, layer), wide in widest_layers(space).items():
        reorder(("h", u, layer), order(named["project", (u, layer)], wide.blocks))
    for u, unit in enumerate(space.units, 1):
        if unit.widths:
            places = order([named["scale", (u, layer)] for layer in range(unit.depths[-1])], 1)
            reorder(("w", u, None), places)
            for (v, layer), wide in widest_layers(space).items():
                if wide.reads == ("w", u, None) and wide.blocks > 1:
                    filters = space.units[v - 1].expansions[-1]
                    reorder(("h", v, layer), (places[:, None] * filters + np.arange(filters)).ravel())
    return vectors


# §16 The update


def power(x: float, n: int) -> float:
    result = 1.0
    while n:
        result, x, n = result * x if n % 2 else result, x * x, n // 2
    return result


def stepped(vectors: list[np.ndarray], g: np.ndarray, m: SimpleNamespace, rate: float, decays: np.ndarray | bool, r: int):
    """Weights and moments after the step of round r along g, by a manifest's optimizer and exchange; `decays` says which weights do."""
    o, (p, moment, *rest), decay = m.optimizer, vectors, float(m.optimizer.weight_decay)
    with np.errstate(all="ignore"):
        if m.exchange.local_steps > 1:
            moment = moment * float(o.outer_momentum) + g
            return [p - (g + moment * float(o.outer_momentum)) * float(o.outer_rate), moment]
        if o.name == "sgd":
            moment = moment * float(o.beta1) + np.where(decays, g + p * decay, g)
            return [p - moment * rate, moment]
        beta1, beta2 = float(o.beta1), float(o.beta2)
        moment, v = moment * beta1 + g * (1.0 - beta1), rest[0] * beta2 + (g * g) * (1.0 - beta2)
        d = (moment / (1.0 - power(beta1, r))) / (np.sqrt(v / (1.0 - power(beta2, r))) + float(o.epsilon))
        return [np.where(decays, p * (1.0 - rate * decay), p) - d * rate, moment, v]


def updated(vectors: list[np.ndarray], g: np.ndarray, training_spec: TrainingSpec, r: int) -> list[np.ndarray]:
    """The weights and moments after round r, whose mean is g."""
    decays = True
    if training_spec.m.recipe.decay == "matrices":
        decays = np.concatenate([np.full(prod(weight.shape), weight.decays) for _, weight in weights_of(training_spec.space)])
    found = stepped(vectors, g, training_spec.m, training_spec.rate(r), decays, r)
    if not all(np.isfinite(vector).all() for vector in found):
        found = vectors
    return sort_channels(found, training_spec.space) if training_spec.sorts_after(r) else found


# §12 What a round leaves. §13 States


def vector_groups(vector: np.ndarray) -> list[bytes]:
    data = vector.astype("<f4").tobytes()
    return [data[start : start + 2**20] for start in range(0, len(data), 2**20)]


def left_by(
    rows, bodies: list[Body], min_exponents: list[int], before, training_spec: TrainingSpec, codec: Codec, n: int
) -> SimpleNamespace:
    """§12: weights and clipped weights, mean, min exponent and thresholds of a round; `min_exponents` are those of the bodies' bases."""
    least = min(before.min_exponent, *min_exponents)
    norms = [body.norm << 2 * (min_exponent - least) for body, min_exponent in zip(bodies, min_exponents, strict=True)]
    usual, w, c = {each.role: each for each in before.thresholds}, weights_in_mean(rows), []
    for row, weight, norm in zip(rows, w, norms, strict=True):
        t, s = usual.get(row.role), sum(row.samples)
        if t and t.norm:
            limit = (4 * t.norm) ** 2 if s >= t.samples else (4 * t.norm) ** 2 * t.samples // s
            limit <<= 2 * (before.min_exponent - least)
            weight = weight if norm <= limit else isqrt(weight * weight * limit // norm)
        c.append(weight)
    is_of_parts = training_spec.m.algorithm == "model-parallel" and training_spec.m.exchange.local_steps > 1
    sums, totals = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for row, body, min_exponent, each, weight in zip(rows, bodies, min_exponents, c, w, strict=True):
        mask = coverage(training_spec.space, *training_spec.architectures(row.round, row.cohort)) if is_of_parts else np.ones(n, bool)
        sums[body.places] += (body.integers << (body.exponents + min_exponent - least)) * each * mask[body.places]
        totals += weight * mask.astype(np.int64)
    mean = (sums.astype(np.float64) / np.maximum(totals, 1).astype(np.float64) * np.ldexp(1.0, least)).astype(np.float32)
    said = [(min_exponent + body.highest, weight) for body, min_exponent, weight in zip(bodies, min_exponents, w, strict=True) if body.norm]
    wanted = median(said) - (16 if codec.is_sparse else 12) if said else before.min_exponent - 1
    min_exponent = min(max(before.min_exponent + (wanted > before.min_exponent) - (wanted < before.min_exponent), -200), 94)
    found = {t.role: (min(shifted(t.norm, before.min_exponent - min_exponent), 2**62 - 1), t.samples) for t in before.thresholds}
    for role in {row.role for row in rows}:
        own = [(isqrt(shifted(norm, 2 * (least - min_exponent))), sum(row.samples), weight)
               for row, norm, weight in zip(rows, norms, w, strict=True) if row.role == role]  # fmt: skip
        found[role] = median([(norm, weight) for norm, _, weight in own]), median([(samples, weight) for _, samples, weight in own])
    return SimpleNamespace(weights=(w, c), mean=mean, min_exponent=min_exponent, thresholds=sorted(found.items()))


@dataclass(frozen=True)
class State:
    """§13: weights and moments after a round."""

    round: int
    vectors: list[np.ndarray]
    teacher: bytes

    def after(self, mean: np.ndarray, training_spec: TrainingSpec, digest: bytes) -> "State":
        """§16: the next state; `digest` is this one's."""
        vectors = updated(self.vectors, mean, training_spec, self.round + 1)
        return State(self.round + 1, vectors, digest if self.round == training_spec.teacher_round else self.teacher)
