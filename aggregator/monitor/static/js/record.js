/** The public record: what this browser's own checks of the log say, entries, credit, signed heads. */

import { Refresher, ask } from "./api.js";
import { peerName } from "./bytes.js";
import { byId, fill, h, row, setText } from "./dom.js";
import { inWords } from "./entries.js";
import { announce, pageButton, peerButton, tableOf, tableWith } from "./parts.js";
import { clock, compact, count, percent, roughly, shortHash } from "./format.js";

const ENTRIES = 12;
const CREDITS = 12;
const PRIVATE = " The data are private: they stay at home, and nobody can compute the work again.";
const KEYS = ["key", "founder", "payout", "partner", "operator", "auditor", "by"]; // fields that are shown as a computer's name
const OUTCOMES = ["good", "not paid", "not shown", "false"]; // of a verdict, one a claim
const KINDS = {
  contribution: "work handed in",
  round: "a round",
  verdict: "what an audit found",
  settlement: "all is paid",
  admission: "a computer comes in",
  revocation: "taken back: who may take part",
};

export class Record extends EventTarget {
  constructor(run, checks) {
    super();
    Object.assign(this, { run, checks, before: null, offset: 0, said: "" });
    this.heads = h("div");
    this.checked = new Map(); // index of an entry -> its verdict's state
    byId("entry-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.check(Number(byId("entry-index").value));
    });
    checks.addEventListener("change", () => this.showVerdict());
    this.known = null; // the verdict on the run or the key that the reader knows
    setText(byId("known-key"), run.ledger.operators.join(", "));
    setText(byId("outside"), `manta-aggregator ledger verify --from ${new URL("/tlog/", location.href)} --run ${run.run}`);
    byId("known-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.compare(byId("known-text").value);
    });
    addEventListener("hashchange", () => this.fromAddress());
    this.entries = new Refresher(byId("entries-rows"), 2000, () => this.loadEntries(), tableOf("entries-rows"));
    this.credits = new Refresher(byId("credits-rows"), 4000, () => this.loadCredits(), tableOf("credits-rows"));
    this.witnesses = new Refresher(byId("heads"), 10000, () => this.loadHeads(), byId("heads"));
    this.showVerdict();
    this.fromAddress();
  }

  ask() {
    for (const part of [this.entries, this.credits, this.witnesses]) part.ask();
  }

  /** Say whether the past has been changed, as far as this browser has seen. */
  showVerdict() {
    const { verdict, first, newest, numChecks, evidence } = this.checks;
    const answers = {
      true: "No. Nothing was changed or taken away.",
      false: `Yes, or it is signed by somebody else: ${verdict.reason}.`,
      unchecked: `Not checked: ${verdict.reason}.`,
      busy: "Checking…",
    };
    const steps = newest && [
      `${count(first.size)} entries when this browser looked first, ${count(newest.size)} now, which begin with those.`,
      `Signed by ${signersOf(this.run.ledger)}; checked ${numChecks === 1 ? "once" : `${count(numChecks)} times`} since this page was opened.`,
    ];
    fill(
      byId("consistency"),
      h("p", { class: `verdict ${verdict.state}` }, answers[verdict.state]),
      steps &&
        h(
          "ul",
          { class: "steps" },
          steps.map((text) => h("li", {}, text)),
        ),
      verdict.state === "true" && this.trust(),
      evidence &&
        h("button", { class: "quiet", type: "button", on: { click: () => save("manta-evidence.json", evidence) } }, "Keep the evidence"),
    );
    if (verdict.state !== this.said && verdict.state !== "busy") announce(`Has the past been changed? ${answers[verdict.state]}`);
    this.said = verdict.state;
  }

  /** Compare what the page's address says that the run or its operator's key is. */
  fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const known = given.get("run") ?? given.get("key");
    if (known === null || known === byId("known-text").value) return;
    byId("known-text").value = known;
    this.compare(known);
  }

  /** Compare this run and its key with what the reader knows; dispatches "compared". */
  async compare(text) {
    const { compare } = await import("./known.js"); // few want it: it is not part of the first view
    const { state, reason } = await compare(text, this.run.run, this.run.ledger);
    this.known = { state, reason };
    const answer = { true: `Yes. ${reason}.`, false: `No: ${reason}. Do not believe this page.`, unchecked: `Not compared: ${reason}.` }[state];
    fill(byId("known-answer"), h("p", { class: `verdict ${state}` }, answer));
    announce(answer);
    for (const line of document.querySelectorAll(".trust")) line.replaceWith(this.trust());
    this.dispatchEvent(new Event("compared"));
  }

  /** Return a line that says what the operator's key is worth to this reader. */
  trust() {
    const words = {
      true: "You compared that key with what you know: it is the right one.",
      false: "That key is not the one that you know.",
    };
    const own = words[this.known?.state];
    if (own) return h("p", { class: `hint trust ${this.known.state}` }, own);
    return h("p", { class: "hint trust" }, "The key is what this server says that it is. ", h("a", { href: "#known" }, "Compare it with what you know"), ".");
  }

  /** Check one entry's proof, and show what was done and what it says. */
  async check(index) {
    byId("entry-index").value = index;
    fill(byId("entry-answer"), h("p", { class: "verdict busy" }, `Checking entry ${index}…`));
    const { verdict, steps, opened } = await this.checks.prove(index);
    const answer = {
      true: `Yes. Entry ${index} is in the log.`,
      false: `No. The proof of entry ${index} is false: ${verdict.reason}.`,
      unchecked: `Entry ${index} is not checked: ${verdict.reason}.`,
    }[verdict.state];
    fill(
      byId("entry-answer"),
      h("p", { class: `verdict ${verdict.state}` }, answer),
      h(
        "ol",
        { class: "steps" },
        steps.map(([text, found]) => h("li", {}, `${text} `, h("code", {}, found))),
      ),
      verdict.state === "true" && this.trust(),
      verdict.state === "true" && opened.fields && fieldsTable(index, opened),
    );
    this.checked.set(index, verdict.state);
    this.markChecked();
    announce(answer);
  }

  async loadEntries() {
    const found = await ask("ledger/entries", { before: this.before, limit: ENTRIES });
    const button = (index) =>
      h("button", { class: "link", type: "button", "data-entry": index, on: { click: () => this.check(index) } }, "check");
    fill(
      byId("entries-rows"),
      found.entries.map((one) =>
        row(
          String(one.index),
          KINDS[one.kind] ?? one.kind,
          one.peer ? peerButton(one.peer) : "everybody",
          one.round === null ? "–" : String(one.round),
          button(one.index),
        ),
      ),
    );
    this.markChecked();
    const older = found.more_before;
    const go = (before) => () => {
      this.before = before;
      this.entries.ask();
    };
    fill(byId("entries-pages"), pageButton("Newest", this.before === null, go(null)), pageButton("Older", older === null, go(older)));
  }

  markChecked() {
    for (const button of byId("entries-rows").querySelectorAll("[data-entry]")) {
      const state = this.checked.get(Number(button.dataset.entry));
      const text = { true: "✓ true", false: "✗ false", unchecked: "? unchecked" }[state] ?? "check";
      setText(button, text);
      button.setAttribute("aria-label", `${text}: the proof of entry ${button.dataset.entry}`);
    }
  }

  async loadCredits() {
    const { total, credits, pool_paid, pool_pending, is_private } = await ask("ledger/credits", { offset: this.offset, limit: CREDITS });
    const pending = pool_pending ? `, and ${compact(pool_pending)} pending: of rounds that are not paid yet, if nothing more is found` : "";
    setText(byId("credit-sub"), `${compact(pool_paid)} units are paid${pending}. Anybody who has the log can compute that.${is_private ? PRIVATE : ""}`);
    const [isPending, all] = [pool_pending > 0, pool_paid + pool_pending];
    byId("credit-pending").hidden = !isPending;
    fill(
      byId("credits-rows"),
      credits.map((one) => {
        const name = one.trains ? peerButton(one.account) : h("code", { title: one.account }, one.account.slice(-8));
        const share = percent(all ? one.credit / all : 0);
        return numbered(row(name, count(one.num_peers), count(one.credit), ...(isPending ? [count(one.pending)] : []), share));
      }),
    );
    const go = (offset) => () => {
      this.offset = offset;
      this.credits.ask();
    };
    const [before, after] = [this.offset - CREDITS, this.offset + CREDITS];
    fill(
      byId("credits-pages"),
      total > CREDITS && [pageButton("Back", before < 0, go(before)), pageButton("More", after >= total, go(after)), `of ${count(total)}`],
    );
  }

  async loadHeads() {
    const { heads, witnesses } = await ask("ledger/heads", { limit: 12 });
    const rows = heads.map((one) => row(count(one.size), h("code", {}, shortHash(one.root)), clock(one.seen_at)));
    const open = byId("heads").querySelector("details")?.open;
    const seen = tableWith("Signed states that the monitor saw", ["Entries", "Root", "Seen at"], rows);
    const beside = witnesses.length
      ? "Witnesses are not the operator's: each signs a state only if it goes on from the last one that it signed. Whose they are, the log cannot say."
      : "No witness signs it beside the operator yet.";
    const signed = witnesses.map((one) => row(h("code", { title: one.peer }, one.peer.slice(-8)), count(one.size), `${clock(one.signed_at)}, ${roughly(Math.max(0, Date.now() - one.signed_at))} ago`));
    const named = tableWith("Witnesses, and the newest state that each has signed", ["Witness", "Entries", "Signed at"], signed);
    const whole = heads[0] && h("pre", { class: "mono scroll", tabindex: 0, "aria-label": "The newest signed state" }, heads[0].note);
    fill(
      byId("heads"),
      h(
        "details",
        { open },
        h("summary", {}, "Signed states of the log"),
        h("p", { class: "sub" }, beside),
        witnesses.length > 0 && h("div", { class: "scroll" }, named),
        h("div", { class: "scroll" }, seen),
        whole,
      ),
    );
  }
}

function fieldsTable(index, { kind, fields, claims }) {
  const grids = [fieldsGrid(`Entry ${index}, ${/^[aeiou]/.test(kind) ? "an" : "a"} ${kind}`, fields), ...claims.map((claim, place) => fieldsGrid(`Its claim ${place + 1}`, claim))];
  return h("details", { open: true }, h("summary", {}, "What it says, read from these very bytes"), h("div", { class: "scroll" }, grids));
}

function fieldsGrid(caption, fields) {
  const rows = Object.entries(fields).map(([name, value]) => row(name.replaceAll("_", " "), shownField(name, value)));
  return h("table", { class: "fields" }, h("caption", {}, caption), h("tbody", {}, rows));
}

function shownField(name, value) {
  if (name === "outcomes") return value.map((each) => OUTCOMES[Number(each)] ?? String(each)).join(", ");
  return KEYS.includes(name) && value instanceof Uint8Array && value.length ? peerName(value) : inWords(value);
}

function numbered(made) {
  for (const cell of made.querySelectorAll("td")) cell.classList.add("n");
  return made;
}


function save(name, content) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(content, null, 1)], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function signersOf({ operators, quorum }) {
  if (operators.length === 1) return `the operator's key ${shortHash(operators[0])}`;
  return `${quorum} or more of the ${operators.length} operators`;
}
