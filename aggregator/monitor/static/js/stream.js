/**
 * The server's events. When the server goes away this says so and comes back; when all streams are taken it asks again and again instead.
 *
 * Dispatches the server's events, "opened" whenever a stream begins (nothing is replayed), and "state".
 * States: "live", "asking" (no stream to be had: every few seconds), "away".
 */

import { Refused, ask } from "./api.js";

const SILENCE_MS = 15000; // three times what passes at most between two events
const ASK_MS = 5000;
const REST_MS = 20000;
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15000;
const EVENTS = ["now", "round", "head", "quality", "front", "trust", "pictures"];

export class Stream extends EventTarget {
  constructor() {
    super();
    this.waitMs = FIRST_WAIT_MS;
    this.state = "away";
    this.lastMs = 0;
    setInterval(() => this.checkSilence(), 1000);
    addEventListener("online", () => this.open());
    document.addEventListener("visibilitychange", () => this.rest());
  }

  /** Begin to listen, or begin anew. */
  open() {
    this.close();
    this.lastMs = performance.now();
    const source = new EventSource("api/events");
    this.source = source;
    for (const name of EVENTS) source.addEventListener(name, (event) => this.take(name, JSON.parse(event.data)));
    source.onopen = () => this.dispatchEvent(new Event("opened"));
    source.onerror = () => this.source === source && this.lose();
  }

  take(name, data) {
    this.lastMs = performance.now();
    this.waitMs = FIRST_WAIT_MS;
    this.become("live");
    this.dispatchEvent(new CustomEvent(name, { detail: data }));
  }

  /** Let go of the stream while nobody looks: a browser has few connections to one server, and other pages want them too. */
  rest() {
    clearTimeout(this.resting);
    if (document.hidden) this.resting = setTimeout(() => this.close(), REST_MS);
    else if (!this.source) this.open();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  checkSilence() {
    if (this.source && performance.now() - this.lastMs > SILENCE_MS) this.lose();
  }

  /** The stream broke, or none was to be had: see whether anybody is there, and try again later. */
  async lose() {
    this.close();
    if (this.state === "live") this.become("away");
    try {
      const now = await ask("now");
      this.become("asking");
      this.dispatchEvent(new CustomEvent("now", { detail: now }));
      this.waitMs = ASK_MS;
    } catch (error) {
      this.become("away", error instanceof Refused ? error.message : "");
      this.waitMs = Math.min(2 * this.waitMs, LONGEST_WAIT_MS);
    }
    if (document.hidden || this.source) return; // `rest` opens it again, or did
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), this.waitMs);
  }

  become(state, reason = "") {
    if (state === this.state && reason === this.reason) return;
    const before = this.state;
    [this.state, this.reason] = [state, reason];
    this.dispatchEvent(new CustomEvent("state", { detail: { state, before, reason } }));
  }
}
