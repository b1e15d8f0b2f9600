/** Quality against cost of the subnets of one evaluation, and of earlier ones behind it: how the front moves. Drawn as SVG. */

import { table } from "./charts.js";
import { fill, h, s } from "./dom.js";
import { compact, milliseconds } from "./format.js";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [260, 58, 12, 12, 42];
const WIDEST = 4; // the newest points' range, so many times, is shown: what lies further off would press them flat

/** What a network costs, by the name of `/api/fronts`: where its points have it, how it is written, and what it is. */
const COSTS = {
  macs: { of: "macs", write: (value) => `${compact(value)}`, name: "operations of one answer", unit: " operations" },
  latency: { of: "latency_ms", write: milliseconds, name: "milliseconds of one answer", unit: " ms" },
};

/** Draw fronts, the newest first, as of `/api/fronts`; `metric` is the run's, `format` writes its values. */
export function drawFront(place, { fronts, cost }, metric, format) {
  const price = COSTS[cost];
  const points = fronts.flatMap((one) => one.points);
  if (!points.length) {
    fill(place, h("p", { class: "empty" }, "Nothing yet: it comes with the first evaluation."));
    return;
  }
  const [newest, width] = [fronts[0], Math.max(place.clientWidth, 240)];
  const across = scale(
    points.map((one) => one[price.of]),
    LEFT,
    width - RIGHT,
  );
  const up = scale(worthShowing(newest, points), HEIGHT - BOTTOM, TOP);
  const drawing = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": described(newest, metric, format, price) });
  drawing.append(...axes(across, up, width, format, price));
  // An SVG inside cuts off what lies outside of the axes.
  const inside = s("svg", {
    x: 0,
    y: TOP - 6,
    width,
    height: HEIGHT - BOTTOM - TOP + 12,
    viewBox: `0 ${TOP - 6} ${width} ${HEIGHT - BOTTOM - TOP + 12}`,
  });
  for (const [age, one] of [...fronts.entries()].reverse()) inside.append(...front(one, age === 0, across, up, format, price));
  drawing.append(inside);
  fill(place, drawing);
}

/** Show the networks of the newest evaluation as a table. */
export function tableFront(place, [newest], format) {
  if (!newest) return;
  const names = { largest: "the largest", smallest: "the smallest", random: "one in between" };
  const head = ["Operations of one answer", "On one core, ms", "How good", "Which", "Best at its cost"];
  table(place, `Networks after round ${newest.round}`, head, () =>
    newest.points.map((one) => [compact(one.macs), milliseconds(one.latency_ms), format(one.quality), names[one.kind] ?? one.kind, one.on_front ? "yes" : "no"]),
  );
}

/** Return the values of quality that the picture has to have room for: the newest, and earlier ones as far as they are near. */
function worthShowing(newest, points) {
  const values = newest.points.map((one) => one.quality);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const reach = (most - least || Math.abs(most) || 1) * (WIDEST - 1);
  return points.map((one) => one.quality).filter((value) => value >= least - reach && value <= most + reach);
}

function described(newest, metric, format, price) {
  const best = newest.points.filter((one) => one.on_front);
  const [first, last] = [best[0], best.at(-1)];
  const sense = metric.higher_is_better ? "more is better" : "less is better";
  const ends = first
    ? `: from ${format(first.quality)} with ${priced(first, price)} to ${format(last.quality)} with ${priced(last, price)}`
    : "";
  return `How good networks of different cost are after round ${newest.round} (${sense})${ends}.`;
}

function priced(point, { of, write, unit }) {
  return `${write(point[of])}${unit}`;
}

function front(one, isNewest, across, up, format, price) {
  const best = one.points.filter((point) => point.on_front).map((point) => `${across.at(point[price.of])},${up.at(point.quality)}`);
  const marks = one.points.map((point) => {
    const kind = `point ${isNewest ? "newest" : "old"} ${point.on_front ? "best" : ""}`;
    const circle = s("circle", { class: kind, cx: across.at(point[price.of]), cy: up.at(point.quality), r: isNewest ? 5 : 3 });
    circle.append(s("title", {}, `round ${one.round}, ${point.kind}: ${format(point.quality)}, ${priced(point, price)}`));
    return circle;
  });
  return [s("polyline", { class: `front ${isNewest ? "newest" : "old"}`, points: best.join(" ") }), ...marks];
}

function axes(across, up, width, format, { write, name }) {
  const marks = up
    .ticks(5)
    .flatMap((value) => [
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: up.at(value), y2: up.at(value) }),
      s("text", { class: "axis", x: LEFT - 8, y: up.at(value) + 4, "text-anchor": "end" }, format(value)),
    ]);
  for (const value of across.ticks(Math.max(4, width / 110))) {
    marks.push(s("text", { class: "axis", x: across.at(value), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, write(value)));
  }
  marks.push(
    s("text", { class: "axis", x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, name),
  );
  return marks;
}

/** A linear scale from the values' range, with a margin, to pixels; `ticks` gives about so many round values in it. */
function scale(values, from, to) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const margin = (most - least || Math.abs(most) || 1) * 0.07;
  const [low, high] = [least - margin, most + margin];
  return {
    at: (value) => Number((from + ((value - low) / (high - low)) * (to - from)).toFixed(1)),
    ticks: (count) => {
      const rough = (high - low) / count;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
      return Array.from(
        { length: Math.floor(high / step) - Math.ceil(low / step) + 1 },
        (_, index) => (Math.ceil(low / step) + index) * step,
      );
    },
  };
}
