/** Who is trusted: verdicts with the findings that led to them, what is in doubt, what audits took. Loaded only where claims are audited. */

import { Refresher, ask, isTheServers } from "./api.js";
import { byId, fill, h, row } from "./dom.js";
import { compact, count, counted, duration, percent, shortHash } from "./format.js";
import { announce, pageButton, peerButton, tableWith } from "./parts.js";

const VERDICTS = 10;
const REASONS = {
  differs: "its work is not what it said",
  withheld: "it did not show its work",
  left: "it left before it had shown this work",
  outvoted: "it said something else than was decided",
};
const OUTCOMES = { holds: "it is true", differs: "it differs", withheld: "it was not shown" };
const CHECKS = { lot: "one lot", sum: "what was handed in", whole: "all lots" };

export class TrustPart {
  /** `check` shows the proof of an entry, by its index. */
  constructor(check) {
    Object.assign(this, { check, offset: 0, claim: null });
    this.refresher = new Refresher(byId("trust"), 4000, () => this.load(), byId("trust-verdicts"));
  }

  ask() {
    this.refresher.ask();
  }

  async load() {
    const [found, { total, verdicts }] = await Promise.all([ask("trust"), ask("trust/verdicts", { offset: this.offset, limit: VERDICTS })]);
    fill(byId("trust-sub"), summary(found));
    fill(byId("trust-doubts"), found.in_doubt.length > 0 && this.doubts(found.in_doubt));
    fill(byId("trust-verdicts"), total ? this.verdicts(verdicts) : h("p", {}, "No verdict so far: nobody was found to have lied."), this.pages(total));
  }

  verdicts(verdicts) {
    const rows = verdicts.map((one) =>
      row(
        String(one.round),
        peerButton(one.peer),
        REASONS[one.reason] ?? one.reason,
        count(one.amount),
        this.evidenceButton(one.claim),
      ),
    );
    return scrolling("Verdicts, the newest first", ["Round", "Of", "Why", "Credit taken back", "Evidence"], rows);
  }

  doubts(doubts) {
    const rows = doubts.map((one) =>
      row(
        String(one.round),
        peerButton(one.peer),
        CHECKS[one.check] ?? one.check,
        one.votes.map((vote) => `${vote.auditor.slice(-6)}: ${OUTCOMES[vote.outcome] ?? vote.outcome}`).join(", "),
        this.evidenceButton(one.claim),
      ),
    );
    return scrolling("In doubt: somebody spoke against it, and it is not decided", ["Round", "Of", "What", "Who said what", "Evidence"], rows);
  }

  evidenceButton(claim) {
    return h("button", { class: "link", type: "button", title: claim, on: { click: () => this.attempt(() => this.show(claim)) } }, "show");
  }

  pages(total) {
    const go = (offset) => () => {
      this.offset = offset;
      this.attempt(() => this.load());
    };
    const [back, on] = [this.offset - VERDICTS, this.offset + VERDICTS];
    const buttons = [pageButton("Back", back < 0, go(back)), pageButton("More", on >= total, go(on))];
    return total > VERDICTS && h("div", { class: "pages" }, buttons, `of ${count(total)}`);
  }

  /** Do what a click asks for; where the server is in the way, say so. */
  async attempt(work) {
    try {
      await work();
    } catch (error) {
      if (!isTheServers(error)) throw error;
      fill(byId("trust-evidence"), h("p", {}, `That did not work: ${error.message}.`));
    }
  }

  /** Show what was claimed, and what each auditor found; each is an entry, whose proof is checked here. */
  async show(claim) {
    const found = await ask(`trust/claims/${claim}`);
    const entry = (index) => h("button", { class: "link", type: "button", on: { click: () => this.check(index) } }, `check entry ${index}`);
    const rows = found.findings.map((one) =>
      row(
        peerButton(one.auditor),
        `${CHECKS[one.check] ?? one.check}${one.check === "lot" ? ` (at ${one.lot})` : ""}`,
        OUTCOMES[one.outcome] ?? one.outcome,
        h("code", { title: one.claimed?.projection ?? "" }, one.claimed ? shortHash(one.claimed.projection) : "–"),
        h("code", { title: one.found ?? "" }, one.found ? shortHash(one.found) : "–"),
        entry(one.index),
      ),
    );
    const text = `${counted(found.findings.length, "finding")} on this claim.`;
    fill(
      byId("trust-evidence"),
      h("h3", {}, "What was claimed, and what was found"),
      h(
        "p",
        {},
        "The claim ",
        h("code", { title: found.claim }, shortHash(found.claim)),
        found.index === null ? "" : " is ",
        found.index === null ? "" : entry(found.index),
        ". Whoever has the weights and the data can compute the lot again: claimed and found are its gradient's projection.",
      ),
      rows.length > 0 && scrolling("Findings", ["Auditor", "Looked at", "Found that", "Claimed", "Found", "Proof"], rows),
      rows.length === 0 && h("p", {}, "The monitor finds no finding on it in the log."),
    );
    announce(text);
  }
}

function summary({ round, is_finished, computers, proven, guilty, due, done, share, pending_rounds, num_rounds, last_final_round }) {
  if (round === null) return "Lots are computed again by auditors. Nothing was looked at yet.";
  const took = share === null ? "" : `, which took ${percent(share)} of the time that this work took`;
  const looked = done ? ` Since the aggregator's start ${counted(done.lots, "lot")} were computed again in ${duration(done.cpu_ms)}${took}.` : "";
  const where = is_finished ? "that took part" : "at work";
  const which = last_final_round ? `what rounds after ${count(last_final_round)} pay` : "all of it";
  const stays = `${which} stays pending: the run ends with round ${count(num_rounds)}`;
  return (
    `${count(proven)} of ${counted(computers, "computer")} ${where} ${proven === 1 ? "is" : "are"} proven; ` +
    `${counted(guilty, "was", "were")} found guilty so far; ${counted(due, "question")} open.${looked} ` +
    `Credit is pending for ${compact(pending_rounds)} rounds, then final; ${stays}. Who is trusted follows from the log; these figures are the aggregator's word for it.`
  );
}

function scrolling(caption, names, rows) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, tableWith(caption, names, rows));
}
