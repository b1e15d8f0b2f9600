/** The front that the run's members measured: in a picture, in words, and as a table with what `manta-search export --arch` takes. */

import { table } from "./charts.js";
import { byId, h, setText } from "./dom.js";
import { compact, counted, shortName } from "./format.js";
import { drawFront } from "./front.js";

/** Show what `/api/members-front` says; nothing until there is one. */
export function showMembersFront(found, metric, format) {
  byId("members-figure").hidden = !found.points.length;
  if (!found.points.length) return;
  setText(byId("members-sub"), inWords(found));
  const points = found.points.map((point) => ({ ...point, kind: "measured by volunteers", on_front: true }));
  drawFront(byId("members-front"), { fronts: [{ round: found.round, points }], cost: "macs" }, metric, format);
  const head = ["Operations of one answer", "How good", "Loss", "Its name for manta-search export --arch"];
  table(byId("members-table"), "Networks that volunteers’ computers measured", head, () =>
    found.points.map((one) => [compact(one.macs), format(one.quality), one.loss.toFixed(3), h("code", {}, one.text)]),
  );
}

function inWords({ round, points, measured, members, samples, not_believed }) {
  const by = `${counted(members, "volunteer’s computer", "volunteers’ computers")} measured after round ${round}`;
  const on = `on ${counted(samples, "example")} that nobody trains on`;
  const left = not_believed.length ? ` Others contradicted ${not_believed.map(shortName).join(", ")}, whose answers do not count.` : "";
  return `${counted(points.length, "network")}, each with less loss than any that costs less, of ${measured} that ${by}, ${on}.${left}`;
}
