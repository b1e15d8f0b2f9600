/** Curves over rounds, drawn by uPlot, each with a line of text that reads the point under the cursor and a table of the same numbers. */

import { fill, h, row } from "./dom.js";

const HEIGHT = 230;
const TABLE_ROWS = 40;
const FEW = 16; // points that are marked one by one
const charts = new Set();

/** Draw all charts anew: the colours have changed. */
export function redrawAll() {
  for (const chart of charts) chart.draw();
}

/** Return a colour of the style sheet as the canvas needs it. */
function colour(name) {
  const probe = document.body.appendChild(h("span", { hidden: true }));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * A chart in `place`, its table in `tablePlace`. `series`: [{name, kind, format}]; kind "largest" | "smallest" | "low" | "high" | "plain";
 * "low" and "high" are the edges of one band. `what` says in words what is drawn.
 */
export class Chart {
  constructor(place, tablePlace, what, series, { axis, from = null, comesWith = "the first evaluation" } = {}) {
    Object.assign(this, { place, tablePlace, what, series, axis, from, data: null, plot: null });
    this.canvas = h("div", { role: "img" });
    this.readout = h("p", { class: "readout" });
    fill(place, h("p", { class: "empty" }, `Nothing yet: it comes with ${comesWith}.`));
    charts.add(this);
    new ResizeObserver(() => this.resize()).observe(place);
  }

  /** Show columns of one length: the rounds, then one of each series; null where nothing is known. */
  show(columns) {
    const isFirst = this.data === null;
    this.data = columns;
    if (!columns[0].length) return;
    if (isFirst || !this.plot) this.draw();
    else this.plot.setData(columns);
    this.read(columns[0].length - 1);
    this.fillTable();
  }

  draw() {
    if (!this.data?.[0].length) return;
    this.plot?.destroy();
    fill(this.place, this.canvas, this.readout);
    this.plot = new uPlot(this.options(), this.data, this.canvas);
    this.read(this.data[0].length - 1);
  }

  options() {
    const lines = { largest: ["accent", 2.5], smallest: ["soft", 2, [6, 4]], plain: ["accent", 2], low: ["band", 1], high: ["band", 1] };
    const shown = this.series.map(({ name, kind }) => {
      const [stroke, width, dash] = lines[kind];
      const isFew = (plot) => plot.data[0].length < FEW && stroke !== "band";
      const points = { show: isFew, size: 6, fill: colour("surface") };
      return { label: name, stroke: colour(stroke), width, dash, points, spanGaps: true };
    });
    const high = this.series.findIndex((one) => one.kind === "high") + 1;
    const low = this.series.findIndex((one) => one.kind === "low") + 1;
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px sans-serif" };
    return {
      width: Math.max(this.place.clientWidth, 200),
      height: HEIGHT,
      scales: {
        x: { time: false, range: (_, least, most) => (least === most ? [least - 1, most + 1] : [least, most]) },
        y: { range: (_, least, most) => this.range(least, most) },
      },
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      bands: high && low ? [{ series: [high, low], fill: colour("band") }] : [],
      hooks: { setCursor: [(plot) => this.read(plot.cursor.idx ?? this.data[0].length - 1)] },
      axes: [
        {
          ...axis,
          grid: { show: false },
          incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000],
          space: 60,
          size: 34,
        },
        { ...axis, size: 58, values: (_, values) => values.map(this.axis) },
      ],
      series: [{ label: "round" }, ...shown],
    };
  }

  range(least, most) {
    if (least === null) return [0, 1];
    const margin = (most - least || Math.abs(most) || 1) * 0.08;
    return [this.from ?? least - margin, most + margin];
  }

  resize() {
    if (this.plot && this.place.clientWidth) this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }

  /** Read one point aloud, so to speak: what the lines are, and where they stand. */
  read(index) {
    const [rounds, ...columns] = this.data;
    const parts = this.parts(index, columns);
    fill(
      this.readout,
      h("span", {}, `Round ${rounds[index]}`),
      parts.map(([kind, text]) => h("span", { class: kind }, h("i"), text)),
    );
    if (index === rounds.length - 1) {
      this.canvas.setAttribute(
        "aria-label",
        `${this.what}, rounds ${rounds[0]} to ${rounds[index]}. At the end: ${parts.map((part) => part[1]).join(", ")}.`,
      );
    }
  }

  parts(index, columns) {
    const parts = [];
    this.series.forEach(({ name, kind, format }, at) => {
      const value = format(columns[at][index]);
      if (kind === "high") return;
      if (kind === "low")
        parts.push(["random", `${name} ${value} to ${format(columns[this.series.findIndex((one) => one.kind === "high")][index])}`]);
      else parts.push([kind === "plain" ? "largest" : kind, `${name} ${value}`]);
    });
    return parts;
  }

  fillTable() {
    const [rounds, ...columns] = this.data;
    const step = Math.max(1, Math.ceil(rounds.length / TABLE_ROWS));
    const places = rounds.map((_, index) => index).filter((index) => (rounds.length - 1 - index) % step === 0);
    table(this.tablePlace, this.what, ["Round", ...this.series.map((one) => one.label ?? one.name)], () =>
      places.reverse().map((index) => [rounds[index], ...this.series.map(({ format }, at) => format(columns[at][index]))]),
    );
  }
}

/** Put a table behind "As a table" in a place, or new rows into the one that is there; `rows` is called only while it is open. */
export function table(place, what, head, rows) {
  let details = place.firstElementChild;
  if (!details) {
    const body = h("tbody");
    const headers = head.map((name, index) => h("th", { scope: "col", class: index ? "n" : null }, name));
    const grid = h("table", {}, h("caption", {}, what), h("thead", {}, h("tr", {}, headers)), body);
    details = h(
      "details",
      {},
      h("summary", {}, "As a table"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": what }, grid),
    );
    details.addEventListener("toggle", () => details.refill());
    fill(place, details);
  }
  details.refill = () => {
    if (!details.open) return;
    const made = rows().map(([first, ...rest]) => row(String(first), ...rest));
    for (const cell of made.flatMap((one) => [...one.querySelectorAll("td")])) cell.classList.add("n");
    fill(details.querySelector("tbody"), made);
  };
  details.refill();
}
