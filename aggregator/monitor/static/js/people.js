/** Who takes part: the picture of the cohorts, a table of the same, and how to join. */

import { Refresher, ask } from "./api.js";
import { byId, fill, h, row, setText } from "./dom.js";
import { count, compact, counted } from "./format.js";
import { pageButton, peerButton, tableOf } from "./parts.js";
import { AT_THE_END, SwarmPicture, stateInWords } from "./swarm_picture.js";

const ROWS = 10;

export class People {
  constructor(run, onChoose) {
    this.offset = 0;
    const pictures = [new SwarmPicture(byId("swarm"), onChoose), new SwarmPicture(byId("swarm-glance"), onChoose, { isNamed: false })];
    const load = async () => {
      const found = await ask("swarm");
      for (const one of pictures) one.show(found);
    };
    this.swarm = ["swarm", "swarm-glance"].map((id) => new Refresher(byId(id), 1000, load));
    this.table = new Refresher(byId("people-rows"), 2000, () => this.load(), tableOf("people-rows"));
    byId("people-query").addEventListener("input", () => this.goTo(0));
    byId("people-sort").addEventListener("change", () => this.goTo(0));
    this.showJoin(run.join);
  }

  ask() {
    for (const part of [...this.swarm, this.table]) part.ask();
  }

  /** Say how many there are, as of `/api/now`. */
  take({ peers, is_finished }) {
    byId("join").hidden = is_finished || !this.canJoin;
    if (is_finished) this.showEnd(peers);
    else this.showNow(peers);
  }

  showNow(peers) {
    const away = peers.away ? `; ${counted(peers.away, "more has left", "more have left")}` : "";
    setText(byId("people-sub"), `${counted(peers.present, "computer")} in ${counted(peers.cohorts, "group")}${away}.`);
  }

  /** Whoever is still there has nothing left to do: what is true for good is who took part. */
  showEnd({ took_part, counted: last }) {
    setText(byId("people-sub"), `${counted(took_part, "computer")} took part, ${count(last)} of them in the last round.`);
    setText(byId("people-now"), "At the end");
    for (const id of ["key-working", "key-late"]) byId(id).hidden = true;
    for (const state of ["gave", "away"]) setText(byId(`key-${state}-words`), AT_THE_END[state]);
  }

  goTo(offset) {
    this.offset = offset;
    this.table.ask();
  }

  async load() {
    const sort = byId("people-sort").value;
    const order = sort === "peer" ? "asc" : "desc";
    const { total, peers, is_finished } = await ask("peers", {
      offset: this.offset,
      limit: ROWS,
      sort,
      order,
      query: byId("people-query").value.trim(),
    });
    const rows = peers.map((one) => {
      const made = row(
        peerButton(one.peer),
        one.cohort ?? "–",
        stateInWords(one.state, one.open, is_finished),
        compact(one.samples),
        count(one.last_round),
        compact(one.credit),
      );
      for (const cell of [...made.children].slice(3)) cell.classList.add("n");
      return made;
    });
    fill(byId("people-rows"), rows.length ? rows : h("tr", {}, h("td", { colspan: 6 }, "Nobody.")));
    const [back, on] = [this.offset - ROWS, this.offset + ROWS];
    fill(
      byId("people-pages"),
      total > ROWS && [
        pageButton("Back", back < 0, () => this.goTo(back)),
        pageButton("More", on >= total, () => this.goTo(on)),
        `of ${count(total)}`,
      ],
    );
  }

  showJoin(lines) {
    this.canJoin = lines.length > 0;
    byId("join").hidden = !this.canJoin;
    fill(
      byId("join-lines"),
      lines.map((line) => h("div", { class: "command" }, h("code", {}, line), copyButton(line))),
    );
  }
}

function copyButton(text) {
  if (!navigator.clipboard) return null;
  const button = h("button", { class: "quiet", type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    const isCopied = await navigator.clipboard.writeText(text).then(
      () => true,
      () => false, // the visitor's browser does not allow it
    );
    setText(button, isCopied ? "Copied" : "Not copied");
  });
  return button;
}
