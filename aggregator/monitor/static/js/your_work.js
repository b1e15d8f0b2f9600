/** "Is my work used?": one peer's claims and credit, and the proofs of its claims checked here. The address of the page keeps the name. */

import { Refresher, ask, isTheServers } from "./api.js";
import { byId, fill, h, row } from "./dom.js";
import { compact, count, counted, percent, roughly, shortName } from "./format.js";
import { announce } from "./parts.js";
import { stateInWords } from "./swarm_picture.js";

const CLAIMS = 10;
const FAULTS = { false: "false", withheld: "not shown" };

export class YourWork {
  constructor(checks) {
    Object.assign(this, { checks, peer: null, verdicts: new Map() });
    byId("peer-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.choose(byId("peer-name").value.trim());
    });
    addEventListener("hashchange", () => this.fromAddress());
    this.refresher = new Refresher(byId("your-work"), 2000, () => this.load(false), byId("peer-answer"));
  }

  /** Look up the peer that the page's address names. */
  fromAddress() {
    const peer = new URLSearchParams(location.hash.slice(1)).get("peer");
    if (!peer) return;
    byId("peer-name").value = peer;
    this.lookUp(peer);
    byId("your-work").scrollIntoView({ block: "start" });
    byId("peer-name").focus({ preventScroll: true });
  }

  choose(peer) {
    const given = new URLSearchParams(location.hash.slice(1));
    const kept = ["run", "key"].filter((name) => given.has(name)).map((name) => `${name}=${encodeURIComponent(given.get(name))}`);
    const wanted = [...kept, `peer=${encodeURIComponent(peer)}`].join("&");
    if (location.hash === `#${wanted}`) this.lookUp(peer);
    else location.hash = wanted;
  }

  async lookUp(peer) {
    [this.peer, this.verdicts] = [peer, new Map()];
    await this.load(true);
  }

  ask() {
    if (this.peer) this.refresher.ask();
  }

  async load(isNew) {
    const peer = this.peer;
    try {
      const found = await ask(`peers/${encodeURIComponent(peer)}`, { limit: CLAIMS });
      if (peer === this.peer) this.show(found, isNew);
    } catch (error) {
      if (!isNew || !isTheServers(error)) throw error;
      this.showRefusal(error);
    }
  }

  showRefusal({ status, message, candidates }) {
    const text =
      { 404: "No. No computer of that name has been heard of in this run.", 409: "Several computers have a name like that. Which one?" }[
        status
      ] ?? `That did not work: ${message}.`;
    const choices = (candidates ?? []).map((one) => h("li", {}, h("a", { href: `#peer=${encodeURIComponent(one)}`, class: "mono" }, one)));
    fill(
      byId("peer-answer"),
      h("div", { class: "answer" }, h("p", { class: "answer-head" }, text), choices.length > 0 && h("ul", {}, choices)),
    );
    announce(text);
  }

  show(found, isNew) {
    this.found = found;
    const text = found.claims
      ? `Yes. It was counted in ${counted(found.claims, "round")} so far, last in round ${found.last_round}.`
      : "Not yet. It has been heard of, but no round has counted work of it so far.";
    const facts = [
      [
        found.is_finished ? "At the end" : "Now",
        stateInWords(found.state, found.open, found.is_finished),
        found.heard_ms === null ? "" : found.heard_ms < 2000 ? "heard of just now" : `heard of ${roughly(found.heard_ms)} ago`,
      ],
      ["Examples", compact(found.samples), `in ${counted(found.microbatches, "microbatch")}`],
      ["Credit", compact(found.credit), found.rank ? `${percent(found.credit_share)} of all, rank ${count(found.rank)}` : "none yet"],
      ["Group", found.cohort ?? "–", found.refused ? `${counted(found.refused, "hand-in")} refused` : "nothing was refused"],
    ];
    const cells = facts.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("span", {}, more))));
    fill(
      byId("peer-answer"),
      h(
        "div",
        { class: "answer" },
        h("p", { class: "answer-head" }, text),
        h("p", { class: "mono" }, found.peer),
        h("dl", { class: "facts" }, cells),
        found.trust && h("p", { class: "sub" }, inTrust(found.trust)),
        this.claims(found),
      ),
    );
    if (isNew) announce(`${shortName(found.peer)}: ${text}`);
  }

  claims(found) {
    if (!found.claims_list.length) return null;
    const head = ["Round", "Entry", "Examples", "Credit", "Checked here"].map((name) => h("th", { scope: "col" }, name));
    const rows = found.claims_list.map((one) => {
      const late = one.age > 0 ? ` (${one.age} late)` : "";
      const credit = `${count(one.credit)}${one.is_paid || !one.credit ? "" : " pending"}`;
      return row(`${one.round}${late}`, String(one.index), count(one.samples), credit, this.mark(one.index));
    });
    const grid = h("table", {}, h("caption", {}, "Its newest claims"), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
    const button = h(
      "button",
      { type: "button", class: "quiet", id: "check-claims", on: { click: () => this.checkAll(found) } },
      "Check these in my browser",
    );
    return h(
      "div",
      {},
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Its newest claims" }, grid),
      h("p", {}, button),
    );
  }

  mark(index) {
    const verdict = this.verdicts.get(index);
    if (!verdict) return "not yet";
    const text = { true: "true", false: `false: ${verdict.reason}`, unchecked: verdict.reason }[verdict.state];
    return h("span", { class: `verdict ${verdict.state}` }, text);
  }

  /** Check that each listed claim is in the log, and signed by this peer. */
  async checkAll(found) {
    byId("check-claims").disabled = true;
    const results = await Promise.all(found.claims_list.map((one) => this.checks.prove(one.index, found.peer)));
    for (const one of results) this.verdicts.set(one.index, one.verdict);
    const good = results.filter((one) => one.verdict.state === "true").length;
    if (this.found.peer !== found.peer) return;
    this.show(this.found, false);
    byId("check-claims")?.focus();
    announce(`${good} of ${counted(results.length, "claim")} checked: true.`);
  }
}

/** Return what audits found of a computer, and what of its credit is paid. */
function inTrust({ is_proven, is_guilty, found_good, paid, pending, all_paid_with, faults }) {
  const reputation = is_guilty
    ? "Its work was found false: what it hands in is not paid any more"
    : is_proven
      ? "Proven"
      : "Not proven yet: what it hands in is paid if an audit finds it good";
  const when = all_paid_with === null ? "the settlement at the end" : `round ${count(all_paid_with)}`;
  const rest = pending ? `, ${compact(pending)} pending: all of it paid with ${when}, if nothing more is found` : "";
  const why = faults.map((one) => `${FAULTS[one.reason] ?? one.reason}, round ${one.round}`).join("; ");
  return `${reputation}. ${counted(found_good, "contribution")} found good${faults.length ? " since then" : ""}. Credit: ${compact(paid)} paid${rest}.${why ? ` Found out: ${why}.` : ""}`;
}
