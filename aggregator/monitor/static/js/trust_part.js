/** Who is trusted: what was found out, what is audited, and the verdicts in the log. Loaded only where contributions are audited. */

import { Refresher, ask, isTheServers } from "./api.js";
import { byId, fill, h, row } from "./dom.js";
import { count, counted, percent, shortHash, shortName } from "./format.js";
import { announce, pageButton, peerButton, tableWith } from "./parts.js";

const ROWS = 8;
const REASONS = { false: "its work was found false", withheld: "its work was not shown" };
const OUTCOMES = {
  good: "found good",
  unpaid: "not paid, through no fault of its own",
  demoted: "not shown",
  void: "false",
  undecided: "not decided yet",
};

export class TrustPart {
  /** `check` shows the proof of an entry, by its index. */
  constructor(check) {
    Object.assign(this, { check, offsets: { faults: 0, audits: 0 } });
    this.refresher = new Refresher(byId("trust"), 4000, () => this.load(), byId("trust-tables"));
  }

  ask() {
    this.refresher.ask();
  }

  async load() {
    const page = (of) => ask(`trust/${of}`, { offset: this.offsets[of], limit: ROWS });
    const [found, faults, audits] = await Promise.all([ask("trust"), page("faults"), page("audits")]);
    fill(byId("trust-sub"), h("p", { class: "sub" }, summary(found)), h("p", { class: "sub" }, payInWords(found)));
    const doubts = found.in_doubt;
    fill(byId("trust-doubts"), doubts.length > 0 && [h("h3", {}, "In doubt"), this.audits("Somebody spoke against it, and it is not decided", doubts)]);
    fill(
      byId("trust-faults"),
      h("h3", {}, "Found out"),
      faults.total ? this.faults(faults.faults) : h("p", {}, "Nobody so far."),
      this.pages("faults", faults.total),
    );
    fill(
      byId("trust-audits"),
      h("h3", {}, "Audited now"),
      audits.total ? this.audits("Contributions that are audited, the newest first", audits.audits) : h("p", {}, "Nothing that is not paid yet is audited."),
      this.pages("audits", audits.total),
    );
  }

  faults(faults) {
    const rows = faults.map((one) =>
      row(String(one.round), peerButton(one.peer), REASONS[one.reason] ?? one.reason, this.evidenceButton(one.contribution)),
    );
    return scrolling("What was found out, the newest first", ["Round", "Of", "What", "Evidence"], rows);
  }

  audits(caption, audits) {
    const rows = audits.map((one) =>
      row(String(one.round), computers(one.claims), count(one.samples), auditorNamed(one.auditor), found(one), this.evidenceButton(one.contribution)),
    );
    return scrolling(caption, ["Round", "Of", "Examples", "Auditor", "Found", "Evidence"], rows);
  }

  evidenceButton(contribution) {
    const click = () => this.attempt(() => this.show(contribution));
    return h("button", { class: "link", type: "button", title: contribution, on: { click } }, "show");
  }

  pages(of, total) {
    const go = (offset) => () => {
      this.offsets[of] = offset;
      this.attempt(() => this.load());
    };
    const [back, on] = [this.offsets[of] - ROWS, this.offsets[of] + ROWS];
    const buttons = [pageButton("Back", back < 0, go(back)), pageButton("More", on >= total, go(on))];
    return total > ROWS && h("div", { class: "pages" }, buttons, `of ${count(total)}`);
  }

  /** Do what a click asks for; where the server is in the way, say so. */
  async attempt(work) {
    try {
      await work();
    } catch (error) {
      if (!isTheServers(error)) throw error;
      const gone = error.status === 404;
      fill(byId("trust-evidence"), h("p", {}, gone ? "The monitor keeps no verdict on it any more; the log has it." : `That did not work: ${error.message}.`));
    }
  }

  /** Show who said what of a contribution; each verdict is an entry, whose proof is checked here. */
  async show(contribution) {
    const seen = await ask(`trust/contributions/${contribution}`);
    const entry = (index) => h("button", { class: "link", type: "button", on: { click: () => this.check(index) } }, `check entry ${index}`);
    const rows = seen.verdicts.map((one) =>
      row(
        auditorNamed(one.auditor),
        one.by === one.auditor ? "itself" : peerButton(one.by),
        found({ claims: seen.claims.map(({ peer }, place) => ({ peer, outcome: one.outcomes[place] })) }),
        one.round === null ? "the settlement" : `round ${count(one.round)}`,
        entry(one.index),
      ),
    );
    const text = seen.verdicts.length ? `${counted(seen.verdicts.length, "verdict")} on this contribution.` : "No verdict on this contribution so far.";
    fill(
      byId("trust-evidence"),
      h("h3", {}, `What was said of a contribution of round ${count(seen.round)}`),
      h(
        "p",
        {},
        "The contribution ",
        h("code", { title: seen.contribution }, shortHash(seen.contribution)),
        " of ",
        computers(seen.claims),
        " is ",
        entry(seen.index),
        `. ${text} Whoever has the weights, the data and what was brought can compute it again.`,
      ),
      rows.length > 0 && scrolling("Verdicts", ["Auditor", "Computed by", "Found", "Counts from", "Proof"], rows),
    );
    announce(text);
  }
}

/** Return an auditor's short name: it need not take part, so there may be nothing more to show of it. */
function auditorNamed(peer) {
  return h("code", { title: peer }, shortName(peer));
}

/** Return whose work something is, at most three of them by name. */
function computers(claims) {
  const named = claims.slice(0, 3).flatMap(({ peer }, place) => [place > 0 && ", ", peerButton(peer)]);
  return h("span", {}, named, claims.length > 3 && ` and ${counted(claims.length - 3, "more", "more")}`);
}

/** Return what was found of all claims, in words: once where it is the same of all. */
function found({ claims }) {
  const words = new Set(claims.map(({ outcome }) => OUTCOMES[outcome] ?? outcome));
  if (words.size === 1) return [...words][0];
  return claims.map(({ peer, outcome }) => `…${peer.slice(-6)}: ${OUTCOMES[outcome] ?? outcome}`).join("; ");
}

function summary({ is_finished, computers: there, proven, proven_after, guilty, demoted, drawn, undecided, unjudged, share, auditors }) {
  const where = is_finished ? "that took part" : "at work";
  const upper = (text) => text[0].toUpperCase() + text.slice(1);
  const out = [
    guilty && `the work of ${counted(guilty, "computer")} was found false`,
    demoted && `${counted(demoted, "computer")} did not show work and ${demoted === 1 ? "has" : "have"} to begin anew`,
  ].filter(Boolean);
  const looked = drawn
    ? `So far ${counted(drawn, "contribution")}, ${percent(share)} of all examples, were drawn to be computed again by ${counted(auditors.length, "named auditor")}; ${count(undecided)} of them wait for a word${unjudged ? `, ${count(unjudged)} got none in time` : ""}.`
    : "Nothing was drawn to be computed again yet.";
  return (
    `${count(proven)} of ${counted(there, "computer")} ${where} ${proven === 1 ? "is" : "are"} proven: ` +
    `what a new one hands in has to be found good ${counted(proven_after, "time")}. ` +
    `${out.length ? `${upper(out.join(", and "))}. ` : ""}${looked}`
  );
}

function payInWords({ is_settled, is_finished, last_paid_round, last_before_settlement, pending_rounds, num_rounds }) {
  if (is_settled) return "The run is settled: all that it pays is paid.";
  const paid = last_paid_round ? `Rounds up to ${count(last_paid_round)} are paid.` : "No round is paid yet.";
  if (is_finished) return `${paid} The run is over: the rest is paid with its settlement, once its audits are done.`;
  const late = last_before_settlement < num_rounds ? `, those after round ${count(last_before_settlement)} with the settlement at the end` : "";
  return `${paid} A round is paid ${counted(pending_rounds, "round")} later${late}, by what is known by then. Until then it is pending.`;
}

function scrolling(caption, names, rows) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, tableWith(caption, names, rows));
}
