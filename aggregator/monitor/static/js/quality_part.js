/** How good the subnets are: curves over the rounds, the front as it moves, and pictures with the networks' answers. */

import { Refresher, ask } from "./api.js";
import { Chart } from "./charts.js";
import { byId, fill, h, setText } from "./dom.js";
import { compact, percent, quality } from "./format.js";
import { drawFront, tableFront } from "./front.js";
import { showMembersFront } from "./members_front.js";

const POINTS = 400;
const LATENCY = "As one core of the aggregator’s computer takes for it: measure your own device with manta-search profile.";

export class QualityPart {
  constructor(run) {
    this.run = run;
    this.format = quality(run.metric);
    const isAccuracy = run.metric.name === "accuracy";
    const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
    setText(byId("curve-title"), isAccuracy ? "Right answers" : "Mean error in pixels");
    setText(byId("front-better"), run.metric.higher_is_better ? "up" : "down");
    byId("loss-figure").hidden = !isAccuracy;
    const low = { name: "others", label: "others, least", kind: "low", format: this.format };
    const high = { name: "", label: "others, most", kind: "high", format: this.format };
    const [largest, smallest] = ["largest", "smallest"].map((kind) => ({ name: kind, kind, format: this.format }));
    const axis = isAccuracy ? (value) => percent(value, 0) : (value) => value.toFixed(1);
    this.curve = new Chart(byId("curve"), byId("curve-table"), byId("curve-title").textContent, [low, high, largest, smallest], { axis });
    const losses = [largest, smallest].map((one) => ({ ...one, format: loss }));
    this.loss = new Chart(byId("loss"), byId("loss-table"), "Loss on held-out examples", losses, {
      axis: (value) => value.toFixed(1),
      from: 0,
    });
    const counted = [{ name: "examples", kind: "plain", format: compact }];
    this.samples = new Chart(byId("samples"), byId("samples-table"), "Examples in each round", counted, {
      axis: compact,
      from: 0,
      comesWith: "the first round",
    });
    this.curves = new Refresher(byId("curve"), 2000, () => this.loadCurves());
    this.fronts = new Refresher(byId("front"), 2000, async () =>
      this.showFronts(await ask("fronts", { limit: 6, cost: byId("front-cost").value })),
    );
    this.membersFront = new Refresher(byId("front"), 2000, async () =>
      showMembersFront(await ask("members-front"), run.metric, this.format),
    );
    byId("front-cost").addEventListener("change", () => this.fronts.ask());
    this.series = new Refresher(byId("samples"), 3000, () => this.loadSeries());
    this.pictures = new Refresher(byId("pictures"), 3000, async () => showPictures(await ask("pictures"), this.format));
    this.showFronts({ fronts: [] });
  }

  showFronts(found) {
    drawFront(byId("front"), found, this.run.metric, this.format);
    tableFront(byId("front-table"), found.fronts, this.format);
    setText(byId("front-note"), found.cost === "latency" ? LATENCY : "");
  }

  ask() {
    for (const part of [this.curves, this.fronts, this.membersFront, this.pictures]) part.ask();
  }

  async loadCurves() {
    const found = await ask("quality", { points: POINTS });
    const { round, largest, smallest, random_least, random_most, held_out, baseline } = found;
    const best = baseline === null ? "" : ` The best guess without looking errs by ${this.format(baseline)}.`;
    const last =
      found.final && found.final.round !== round.at(-1)
        ? ` At the end: ${this.format(found.final.largest)} and ${this.format(found.final.smallest)}.`
        : "";
    const examples = held_out === null ? "examples" : `${held_out} examples`;
    const measured = `Measured now and then on ${examples} that nobody trains on.`;
    setText(
      byId("quality-sub"),
      `${this.run.evaluate_share ? measured : "The operator has nothing measured while the run goes on."}${best}${last}`,
    );
    this.curve.show([round, random_least, random_most, largest, smallest]);
    if (found.loss_largest) this.loss.show([round, found.loss_largest, found.loss_smallest]); // stereo: the error is the loss
  }

  async loadSeries() {
    const { round, counted } = await ask("series", { points: POINTS });
    this.samples.show([round, counted]);
  }
}

function showPictures(found, format) {
  const place = byId("pictures");
  if (found.round === null) return;
  const title = h("h3", {}, `What it says after round ${found.round}`);
  const parts = found.kind === "stereo" ? found.scenes.map((scene) => sceneOf(scene, found, format)) : [sheetOf(found)];
  fill(place, title, parts);
}

/** Return held-out images with what the largest and the smallest network take them for. */
function sheetOf({ sheet, answers }) {
  const tiles = answers.map((one, index) => {
    const said = ["largest", "smallest"].map((kind) => {
      const isRight = one[kind] === one.label;
      const sure = `${percent(one[`${kind}_sure`], 0)} sure`;
      return h("span", { class: isRight ? null : "wrong", title: sure }, `${kind} ${one[kind]} ${isRight ? "✓" : "✗"}`);
    });
    return h("li", {}, tileOf(sheet, index, one.label), said);
  });
  return h("ul", { class: "sheet" }, tiles);
}

function tileOf({ picture, tile_width, tile_height, columns, count }, index, label) {
  const tile = h("div", { class: "tile", role: "img", "aria-label": `a picture of ${label}` });
  Object.assign(tile.style, {
    width: `${tile_width}px`,
    height: `${tile_height}px`,
    backgroundImage: `url("api/pictures/${encodeURIComponent(picture)}.png")`,
    backgroundPosition: `${-(index % columns) * tile_width}px ${-Math.floor(index / columns) * tile_height}px`,
    backgroundSize: `${columns * tile_width}px ${Math.ceil(count / columns) * tile_height}px`,
  });
  return tile;
}

/** Return a pair's left image, what is true, what two networks see, and where they err. */
function sceneOf(scene, { max_disparity, max_error }, format) {
  const shown = [
    ["left", "the left camera’s picture"],
    ["truth", `how near things are: from dark to bright 0 to ${max_disparity} pixels`],
    ["largest", `as the largest network sees it: error ${format(scene.largest_epe)}`],
    ["largest_error", `where the largest errs: 0 to ${max_error} pixels`],
    ["smallest", `as the smallest network sees it: error ${format(scene.smallest_epe)}`],
    ["smallest_error", `where the smallest errs: 0 to ${max_error} pixels`],
  ];
  const figures = shown
    .filter(([name]) => scene[name])
    .map(([name, text]) => {
      const image = h("img", {
        src: `api/pictures/${encodeURIComponent(scene[name])}.png`,
        width: scene.width,
        height: scene.height,
        alt: text,
      });
      return h("figure", {}, image, h("figcaption", {}, text));
    });
  return h("div", { class: "scenes" }, figures);
}
