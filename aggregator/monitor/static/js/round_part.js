/** A round: where its time went, the traffic, the newest ones, and who gave what to one of them. */

import { Refresher, ask, isTheServers } from "./api.js";
import { byId, fill, h, row, setText } from "./dom.js";
import { bytes, clock, compact, count, counted, duration } from "./format.js";
import { announce, peerButton, tableOf } from "./parts.js";

const ROUNDS = 8;
const FOUND = { good: "found good", unpaid: "not paid", demoted: "not shown", void: "false", undecided: "not decided yet" };
const SPANS = {
  train: "computers learn",
  average: "groups average",
  publish: "they hand in",
  close: "the round closes",
  commit: "average and commit",
  fetch: "others fetch it",
  update: "computers update",
};

export class RoundPart {
  constructor() {
    this.timeline = new Refresher(byId("timeline"), 2000, async () => this.showTimeline((await ask("timeline", { limit: 2 })).timelines));
    this.traffic = new Refresher(byId("traffic"), 5000, async () => showTraffic(await ask("traffic")), byId("traffic"));
    this.rounds = new Refresher(
      byId("rounds-rows"),
      1000,
      async () => this.showRounds((await ask("rounds", { limit: ROUNDS })).rounds),
      tableOf("rounds-rows"),
    );
  }

  ask() {
    for (const part of [this.timeline, this.traffic, this.rounds]) part.ask();
  }

  /** Show the newest round whose fetching is over as well, else the newest. */
  showTimeline(timelines) {
    const shown = timelines.find((one) => one.spans.some((span) => span.name === "fetch" && span.end_ms !== null)) ?? timelines[0];
    if (!shown) {
      fill(byId("timeline"), h("p", { class: "empty" }, "Nothing yet: it comes with the first round."));
      return;
    }
    setText(byId("timeline-title"), `Where the time of round ${shown.round} went`);
    const end = Math.max(1, ...shown.spans.map((one) => one.end_ms ?? 0));
    const rows = shown.spans.map((one) => row(SPANS[one.name] ?? one.name, laneOf(one, end), spanOf(one)));
    const caption = h("caption", {}, `Times of round ${shown.round}`);
    fill(
      byId("timeline"),
      h("div", { class: "scroll" }, h("table", { class: "spans" }, caption, h("tbody", {}, rows))),
      h("p", { class: "hint" }, "Striped: as the computers say. The others were measured by the aggregator."),
    );
  }

  showRounds(rounds) {
    const rows = rounds.map((one) => {
      const button = h(
        "button",
        {
          class: "link",
          type: "button",
          "aria-label": `show who gave what to round ${one.round}`,
          on: { click: () => this.showDetail(one.round) },
        },
        "show",
      );
      const made = row(
        count(one.round),
        clock(one.committed_at),
        duration(one.round_ms),
        `${one.contributions} from ${counted(one.claims, "computer")}`,
        count(one.counted),
        button,
      );
      for (const cell of [...made.children].slice(2, 5)) cell.classList.add("n");
      return made;
    });
    fill(byId("rounds-rows"), rows.length ? rows : h("tr", {}, h("td", { colspan: 6 }, "No round yet.")));
  }

  /** Show who gave what to a round. */
  async showDetail(round) {
    try {
      showRound(round, await ask(`rounds/${round}`, { limit: 50 }));
    } catch (error) {
      if (!isTheServers(error)) throw error;
      fill(byId("round-detail"), h("p", { class: "notice" }, `That did not work: ${error.message}.`));
    }
  }
}

function showRound(round, found) {
  const isAudited = found.contributions_list.some((one) => one.is_audited);
  const names = ["Computer", "Group", "Examples", "A microbatch took", "Credit", ...(isAudited ? ["Audit"] : [])];
  const head = names.map((name, index) => h("th", { scope: "col", class: index > 1 && index < 5 ? "n" : null }, name));
  const rows = found.contributions_list.flatMap((one) =>
    one.claims.map((claim) => {
      const made = row(
        peerButton(claim.peer),
        `${one.cohort}${one.age ? `, ${counted(one.age, "round")} late` : ""}`,
        count(claim.samples),
        duration(claim.microbatch_ms),
        `${compact(claim.credit)}${one.is_paid || !claim.credit ? "" : " pending"}`,
        ...(isAudited ? [one.is_audited ? FOUND[claim.outcome ?? "undecided"] : one.is_audited === false ? "not drawn" : "–"] : []),
      );
      for (const cell of [...made.children].slice(2, 5)) cell.classList.add("n");
      return made;
    }),
  );
  const grid = h("table", {}, h("caption", {}, `Who gave what to round ${round}`), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
  const rest =
    found.total > found.contributions_list.length &&
    h("p", { class: "sub" }, `The first ${found.contributions_list.length} of ${count(found.total)} contributions.`);
  fill(
    byId("round-detail"),
    h("h3", { tabindex: -1 }, `Who gave what to round ${round}`),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Round ${round}` }, grid),
    rest,
  );
  announce(`Round ${round}: ${counted(found.total, "contribution")}.`);
  byId("round-detail").firstElementChild.focus();
}

function laneOf({ start_ms, end_ms, known }, end) {
  if (known === "unknown" || start_ms === null || end_ms === null) return h("span", { class: "unknown" }, "not seen from here");
  const bar = h("i");
  bar.style.left = `${(100 * start_ms) / end}%`;
  bar.style.width = `${(100 * (end_ms - start_ms)) / end}%`;
  return h("span", { class: `lane ${known}`, "aria-hidden": "true" }, bar);
}

function spanOf({ start_ms, end_ms }) {
  return start_ms === null || end_ms === null ? "–" : duration(end_ms - start_ms);
}

function showTraffic(found) {
  if (found.in_bytes === null) {
    fill(byId("traffic"), h("p", { class: "empty" }, "The aggregator does not say."));
    return;
  }
  const facts = [
    ["In", found.in_bytes_s, found.in_bytes],
    ["Out", found.out_bytes_s, found.out_bytes],
  ].map(([name, rate, total]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, `${bytes(rate)}/s`), h("span", {}, `${bytes(total)} in all`))),
  );
  const head = ["Call", "Times", "In", "Out"].map((name, index) => h("th", { scope: "col", class: index ? "n" : null }, name));
  const rows = (found.calls ?? []).map((one) => {
    const made = row(one.method, count(one.calls), bytes(one.in_bytes), bytes(one.out_bytes));
    for (const cell of made.querySelectorAll("td")) cell.classList.add("n");
    return made;
  });
  const grid = h("table", {}, h("caption", {}, "Traffic by call"), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
  const refused = Object.entries(found.refused ?? {}).map(([reason, times]) => `${reason} (${count(times)})`);
  const open = byId("traffic").querySelector("details")?.open;
  fill(
    byId("traffic"),
    h("div", { class: "answer" }, h("dl", { class: "facts" }, facts)),
    h("details", { open }, h("summary", {}, "By call"), h("div", { class: "scroll" }, grid)),
    h("p", { class: "hint" }, refused.length ? `Refused: ${refused.join(", ")}.` : "Nothing was refused."),
  );
}
