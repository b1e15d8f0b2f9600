/** The first screen, without a word of the trade: what is trained and why, how far it is, who is at work, how good it is, what is wrong. */

import { byId, fill, h, setText } from "./dom.js";
import { compact, count, counted, pace, percent, quality, roughly } from "./format.js";
import { fillBar } from "./parts.js";

const SUBJECTS = { digits: "to read handwritten digits" };
const TASKS = { classification: "to tell what is in a picture", stereo: "to see how far away things are" };
const LEVELS = { alarm: "Alarm:", warning: "Warning:" };
const STAGES = {
  idle: "opens with the first hand-in",
  open: "is open",
  waiting: "waits for the last bytes",
  closed: "is being averaged",
};

export class Overview {
  constructor(run) {
    this.run = run;
    this.format = quality(run.metric);
    const subject = SUBJECTS[run.dataset] ?? TASKS[run.task] ?? "";
    setText(byId("title"), `Volunteers’ computers teach one network ${subject}`);
    setText(byId("purpose"), run.purpose);
    setText(byId("run-name"), run.name);
    setText(byId("fact-quality-name"), run.metric.name === "accuracy" ? "Right answers" : "Mean error");
    document.title = `${run.name}: a training run of Manta`;
    fill(byId("about-run"), `Run `, h("code", {}, run.run), `, ${run.supernet}, ${run.algorithm}, ${run.schedule}, Manta ${run.program}.`);
  }

  /** Show `/api/now`. */
  take(now) {
    this.showProgress(now);
    this.showFacts(now);
    this.showOpenRound(now);
    const reading = now.reading && `The log is being read: ${count(now.reading.entries)} of ${count(now.reading.of)} entries.`;
    this.showAlarms("reading", reading ? [{ level: "note", text: reading }] : []);
    this.showAlarms("server", now.alarms);
  }

  showProgress({ round, num_rounds, left_ms, is_finished }) {
    const text = round ? `Round ${count(round)} of ${count(num_rounds)}` : "Waiting for the first round";
    const left = left_ms === null ? "" : `about ${roughly(left_ms)} to go`;
    setText(byId("round-of"), is_finished ? `Finished after ${count(round)} rounds` : text);
    setText(byId("time-left"), is_finished ? "" : left);
    fillBar(byId("progress"), round, num_rounds, text);
  }

  showFacts({ peers, quality: found, round_ms, counted_total, is_finished }) {
    setText(byId("fact-peers-name"), is_finished ? "Computers that took part" : "Computers at work");
    setText(byId("fact-peers"), count(is_finished ? peers.took_part : peers.present));
    setText(byId("fact-peers-more"), is_finished ? `${count(peers.counted)} in the last round` : `in ${counted(peers.cohorts, "group")}`);
    setText(byId("fact-quality"), found ? this.format(found.largest) : "–");
    setText(byId("fact-quality-more"), found ? `the smallest network ${this.format(found.smallest)}` : "not measured yet");
    const [rate, unit] = pace(is_finished ? null : round_ms);
    setText(byId("fact-pace"), rate);
    setText(byId("fact-pace-more"), is_finished ? "no more rounds" : `rounds ${unit}`);
    setText(byId("fact-samples"), compact(counted_total));
  }

  showOpenRound({ open, is_finished }) {
    const bar = byId("open-bar");
    bar.hidden = !open || is_finished || !open.expected;
    if (is_finished) setText(byId("open-round"), "The run is finished: no round is open.");
    else if (!open) setText(byId("open-round"), "The aggregator does not say what is going on at the moment.");
    else {
      const left = open.stage === "open" && open.left_ms !== null ? `, ${roughly(open.left_ms)} left` : "";
      const late = open.late ? `, ${counted(open.late, "is", "are")} late` : "";
      setText(
        byId("open-round"),
        `Round ${count(open.round)} ${STAGES[open.stage] ?? open.stage}${left}. ${open.handed} of ${open.expected} have handed in${late}.`,
      );
      fillBar(bar, Math.min(open.handed, open.expected), open.expected, `${open.handed} of ${open.expected}`);
    }
  }

  /** Show what is wrong, by whose word: the server's, or this page's own checks. Nodes stay as they are while their words do. */
  showAlarms(source, alarms) {
    this.alarms = { ...this.alarms, [source]: alarms };
    const all = Object.values(this.alarms).flat();
    const words = JSON.stringify(all.map(({ level, text }) => [level, text]));
    if (words === this.alarmWords) return;
    this.alarmWords = words;
    fill(
      byId("alarms"),
      all.map(({ level, text }) => h("p", { class: `notice ${level}` }, h("b", {}, LEVELS[level] ?? ""), text)),
    );
  }
}
