/** The page's beginning: asks what run this is, puts the parts together, and passes the server's events on to them. */

import { ask, isTheServers } from "./api.js";
import { redrawAll } from "./charts.js";
import { byId, fill, h, setText } from "./dom.js";
import { LogChecks } from "./log_checks.js";
import { Overview } from "./overview.js";
import { People } from "./people.js";
import { QualityPart } from "./quality_part.js";
import { Record } from "./record.js";
import { RoundPart } from "./round_part.js";
import { Stream } from "./stream.js";
import { YourWork } from "./your_work.js";

const AGAIN_MS = 3000;
const WORDS = { live: "Live", asking: "Live, a little late: many are looking", away: "The server does not answer; trying again" };

/** Return what run this is, as soon as somebody says so. */
async function runOf() {
  for (;;) {
    try {
      return await ask("run");
    } catch (error) {
      if (!isTheServers(error)) throw error;
      tell({ state: "away", reason: error.message });
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

function tell({ state, reason }) {
  const pill = byId("connection");
  pill.dataset.state = state;
  setText(pill, WORDS[state]);
  pill.title = reason ?? "";
}

async function begin() {
  const run = await runOf();
  const checks = new LogChecks(run.run, run.ledger);
  const work = new YourWork(checks);
  const overview = new Overview(run);
  const people = new People(run, (peer) => work.choose(peer));
  const [quality, round, record] = [new QualityPart(run), new RoundPart(), new Record(run, checks)];
  const stream = new Stream();
  const trust = run.is_audited ? await trustPart(record) : null;
  const onRound = () => [people, round, record, work, quality.series].forEach((part) => part.ask());
  const everything = () => [onRound, () => quality.ask(), () => trust?.ask()].forEach((each) => each());

  checks.addEventListener("change", () => {
    const text = `This browser found that the log was rewritten, or is signed by somebody else: ${checks.verdict.reason}.`;
    overview.showAlarms("checks", checks.evidence ? [{ level: "alarm", text }] : []);
  });
  record.addEventListener("compared", () => {
    const text = `This is not the run that you mean: ${record.known.reason}.`;
    overview.showAlarms("known", record.known.state === "false" ? [{ level: "alarm", text }] : []);
  });
  stream.addEventListener("state", ({ detail }) => tell(detail));
  stream.addEventListener("opened", async () => {
    const found = await ask("run").catch((error) => (isTheServers(error) ? run : Promise.reject(error)));
    if (found.run !== run.run) location.reload(); // another run is served here now
    everything();
  });
  let [seen, open] = [null, ""];
  stream.addEventListener("now", ({ detail: now }) => {
    overview.take(now);
    people.take(now);
    round.traffic.ask();
    const hands = JSON.stringify([now.open?.round, now.open?.stage, now.open?.handed, now.open?.good, now.open?.late, now.peers]);
    if (hands !== open) people.ask();
    open = hands;
    if (stream.state === "asking" && now.round !== seen) {
      everything();
      ask("ledger/head").then(
        (head) => checks.take(head),
        (error) => isTheServers(error) || Promise.reject(error),
      );
    }
    seen = now.round;
  });
  stream.addEventListener("round", onRound);
  stream.addEventListener("head", ({ detail }) => checks.take(detail));
  stream.addEventListener("quality", () => quality.ask());
  stream.addEventListener("front", () => quality.membersFront.ask());
  stream.addEventListener("trust", () => [people, record, work, trust].forEach((part) => part?.ask()));
  stream.addEventListener("pictures", () => quality.pictures.ask());
  everything();
  work.fromAddress();
  stream.open();
}

/** Return the part that only runs with audits have. */
async function trustPart(record) {
  for (const id of ["trust", "trust-link"]) byId(id).hidden = false;
  const { TrustPart } = await import("./trust_part.js");
  return new TrustPart((index) => {
    byId("entry-form").scrollIntoView({ block: "center" });
    record.check(index);
  });
}

/** The switch between light and dark; without a choice the page follows the system. */
function furnishTheme() {
  const [button, dark] = [byId("theme"), matchMedia("(prefers-color-scheme: dark)")];
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const show = () => {
    setText(button, isDark() ? "Light" : "Dark");
    button.setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
    redrawAll();
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("manta.theme", document.documentElement.dataset.theme);
    } catch {
      // a browser may keep nothing: then the choice is for this visit
    }
    show();
  });
  dark.addEventListener("change", show);
  show();
}

/** Say that this page itself is broken: whoever made it has to know. */
function confess(error) {
  fill(byId("faults"), h("p", { class: "notice alarm" }, h("b", {}, "This page has a fault:"), String(error?.message ?? error)));
}

addEventListener("error", (event) => event.error && confess(event.error));
addEventListener("unhandledrejection", (event) => confess(event.reason));
furnishTheme();
begin();
