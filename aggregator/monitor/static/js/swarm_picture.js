/** The peers as dots in their cohorts, as SVG made here. Dots keep their place while their cohort keeps its members. */

import { fill, h, s } from "./dom.js";
import { counted, shortName } from "./format.js";

const GAP = 18;
const LABEL = 40; // below a cohort
const GOLDEN_ANGLE = Math.PI * (3 - Math.sqrt(5));
const NAMED_COHORTS = 40; // with more of them nobody reads their names
const GAVE = new Set(["good", "body"]);
const WORDS = { gave: "has given to this round", working: "at work", late: "late", away: "gone" };
export const AT_THE_END = { gave: "in the last round", away: "not in the last round" };

/** Return how a dot is drawn: what a peer did in the open round, and before; of a finished run, whether it was in the last round. */
export function stateOf(state, open, isFinished) {
  if (isFinished) return state === "counted" ? "gave" : "away";
  if (GAVE.has(open)) return "gave";
  if (state === "late") return "late";
  return state === "away" ? "away" : "working";
}

/** Return in words what `stateOf` says. */
export function stateInWords(state, open, isFinished) {
  return (isFinished ? AT_THE_END : WORDS)[stateOf(state, open, isFinished)];
}

export class SwarmPicture {
  /** `isNamed`: with the cohorts' names and what they gave. `onChoose` gets the peer whose dot is chosen. */
  constructor(place, onChoose, { isNamed = true } = {}) {
    Object.assign(this, { place, onChoose, isNamed, shape: "", dots: new Map() });
    this.drawing = s("svg", { role: "img" });
    this.drawing.addEventListener("click", (event) => event.target.dataset?.peer && this.onChoose(event.target.dataset.peer));
    new ResizeObserver(() => this.found && this.show(this.found)).observe(place);
  }

  /** Show `/api/swarm`. */
  show(found) {
    this.found = found;
    if (!found.shown) {
      fill(this.place, h("p", { class: "empty" }, "Nobody yet. Dots appear here as computers join."));
      this.shape = "";
      return;
    }
    const rafts = raftsOf(found);
    const width = this.place.clientWidth;
    if (!width) return; // it is not shown
    const shape = JSON.stringify([width, rafts.map((raft) => [raft.name, raft.members.map((at) => found.peer[at])])]);
    if (shape !== this.shape) this.arrange(found, rafts, width);
    this.shape = shape;
    this.paint(found, rafts);
  }

  /** Put everything at its place. */
  arrange(found, rafts, width) {
    this.dots.clear();
    const dot = dotRadius(found.shown, this.isNamed ? width : 1.6 * width); // without names there is room
    for (const raft of rafts) raft.radius = Math.max(dot * 3, dot * 2.6 * Math.sqrt(raft.members.length) + dot * 1.6);
    const isNamed = this.isNamed && rafts.length <= NAMED_COHORTS;
    const height = flow(rafts, width, isNamed);
    this.labels = [];
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    fill(
      this.drawing,
      rafts.flatMap((raft) => this.raft(found, raft, dot, isNamed)),
    );
    if (this.drawing.parentNode !== this.place) fill(this.place, this.drawing);
  }

  raft(found, raft, dot, isNamed) {
    const parts = [s("circle", { class: "raft", cx: raft.x, cy: raft.y, r: raft.radius })];
    raft.members.forEach((at, place) => {
      const [away, angle] = placeAround(place, raft.members.length);
      const [x, y] = [raft.x + dot * away * Math.cos(angle), raft.y + dot * away * Math.sin(angle)];
      const title = s("title");
      const circle = s("circle", { cx: x.toFixed(1), cy: y.toFixed(1), "data-peer": found.peer[at] }, title);
      this.dots.set(found.peer[at], { circle, title, radius: dot });
      parts.push(circle);
    });
    if (isNamed) {
      const label = s("text", { class: "raft-count", x: raft.x, y: raft.y + raft.radius + 32 });
      this.labels.push(label);
      parts.push(s("text", { class: "raft-name", x: raft.x, y: raft.y + raft.radius + 17 }, raft.name), label);
    }
    return parts;
  }

  /** Give each dot the look of its state. */
  paint(found, rafts) {
    const given = new Map();
    found.peer.forEach((peer, at) => {
      const { circle, title, radius } = this.dots.get(peer);
      const state = stateOf(found.state[at], found.open[at], found.is_finished);
      given.set(at, state === "gave");
      circle.setAttribute("class", `dot ${state}`);
      circle.setAttribute("r", state === "away" ? radius * 0.6 : radius);
      title.textContent = `${shortName(peer)}: ${stateInWords(found.state[at], found.open[at], found.is_finished)}`;
    });
    this.labels.forEach((label, index) => {
      const members = rafts[index].members;
      const gave = members.filter((at) => given.get(at)).length;
      label.textContent = `${gave} of ${members.length} ${found.is_finished ? "at the end" : "gave"}`;
    });
    const gave = [...given.values()].filter(Boolean).length;
    this.drawing.setAttribute(
      "aria-label",
      `${counted(found.shown, "computer")} in ${counted(rafts.length, "group")}; ${gave} gave to the ${found.is_finished ? "last" : "open"} round.`,
    );
  }
}

/** Return {name, members}: the cohorts of several in their order, then all who are alone, as one. */
function raftsOf(found) {
  const cohorts = new Map();
  found.cohort.forEach((cohort, at) => cohorts.set(cohort, [...(cohorts.get(cohort) ?? []), at]));
  const isAlone = ([cohort, members]) => cohort === null || members.length === 1; // null: nothing of it was counted yet
  const alone = [...cohorts].filter(isAlone).flatMap(([, members]) => members);
  const together = [...cohorts].filter((one) => !isAlone(one)).map(([cohort, members]) => ({ name: found.cohorts[cohort], members }));
  if (alone.length === 1) return [...together, { name: found.cohorts[found.cohort[alone[0]]] ?? "new here", members: alone }];
  return alone.length ? [...together, { name: together.length ? "each alone" : "each by itself", members: alone }] : together;
}

/** Return where a member sits: how far from the middle, in radii of a dot, and at what angle. Few sit in a circle, many like seeds. */
function placeAround(place, count) {
  if (count === 1) return [0, 0];
  if (count <= 6) return [count === 2 ? 1.6 : 2.1 + 0.2 * (count - 3), (2 * Math.PI * place) / count + (count === 2 ? 0 : Math.PI / -2)];
  return [2.5 * Math.sqrt(place + 0.5), place * GOLDEN_ANGLE];
}

function dotRadius(count, width) {
  return Math.min(width / 45, 11, Math.max(3.2, width / 22 / Math.sqrt(count)));
}

/** Set x and y of circles in rows that fill a width; return the height of all. */
function flow(rafts, width, isNamed) {
  const rows = [];
  for (const raft of rafts) {
    const space = Math.max(2 * raft.radius, isNamed ? 110 : 0) + GAP;
    const last = rows.at(-1);
    if (last && last.width + space <= width) [last.rafts, last.width] = [[...last.rafts, raft], last.width + space];
    else rows.push({ rafts: [raft], width: space });
    raft.space = space;
  }
  let top = GAP / 2;
  for (const line of rows) {
    const tallest = Math.max(...line.rafts.map((raft) => raft.radius));
    let left = (width - line.width) / 2;
    for (const raft of line.rafts) {
      [raft.x, raft.y] = [left + raft.space / 2, top + tallest];
      left += raft.space;
    }
    top += 2 * tallest + (isNamed ? LABEL : GAP);
  }
  return Math.ceil(top + 4);
}
