/** What several parts of the page have in common: telling a screen reader something once, and a peer's name that leads to its work. */

import { byId, h, setText } from "./dom.js";
import { shortName } from "./format.js";

/** Have a screen reader say this, once. */
export function announce(text) {
  setText(byId("announcement"), text);
}

/** Return a peer's short name as a link to what is known of it; the whole name is its title. */
export function peerButton(peer) {
  return h("a", { href: `#peer=${encodeURIComponent(peer)}`, title: peer, class: "mono" }, shortName(peer));
}

/** Return the region around the rows of a table. */
export function tableOf(id) {
  return byId(id).closest(".scroll");
}

/** Fill a progress bar to a share from 0 to 1. */
export function fillBar(bar, now, most, text) {
  bar.setAttribute("aria-valuenow", now);
  bar.setAttribute("aria-valuemax", most);
  bar.setAttribute("aria-valuetext", text);
  bar.firstElementChild.style.transform = `scaleX(${most ? Math.min(1, now / most) : 0})`;
}

/** Return a table with a caption and the names of its columns. */
export function tableWith(caption, names, rows) {
  const heads = names.map((name) => h("th", { scope: "col" }, name));
  return h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
}

/** Return a button of a table with several pages. */
export function pageButton(text, isOff, onClick) {
  return h("button", { class: "quiet", type: "button", disabled: isOff, on: { click: onClick } }, text);
}
