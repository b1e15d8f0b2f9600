/** Asking the server for JSON. Paths are relative to the page, so that it works behind a proxy's path as well. */

/** An answer that says no: `status` is HTTP's, `candidates` the peers that a short name fits. */
export class Refused extends Error {
  constructor(status, reason, candidates = []) {
    super(reason);
    this.status = status;
    this.candidates = candidates;
  }
}

/** Return the JSON at `api/<path>`. Throws Refused, or TypeError where nobody answers. */
export async function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  const answer = await fetch(`api/${path}${query && `?${query}`}`, { signal: AbortSignal.timeout(20000) });
  const found = await answer.json().catch(() => null);
  if (answer.ok && found !== null) return found;
  throw new Refused(answer.status, found?.error?.reason ?? `the server answered ${answer.status}`, found?.error?.candidates);
}

/**
 * Keeps a part of the page fresh: `load` runs after `ask`, one at a time, at most every `everyMs`, and only while the part is in sight.
 * What is under somebody's pointer, or has the focus, stays as it is until they leave it (`held`): nobody can press a button that moves.
 * An error leaves what was there: the page says elsewhere that the server is away.
 */
export class Refresher {
  constructor(element, everyMs, load, held = null) {
    Object.assign(this, { load, everyMs, held, wasLoaded: false });
    this.isWanted = false;
    this.isBusy = false;
    this.isSeen = false;
    new IntersectionObserver(
      (entries) => {
        this.isSeen = entries.at(-1).isIntersecting;
        this.run();
      },
      { rootMargin: "300px" },
    ).observe(element.closest(".scroll") ?? element); // a table without rows has no place that could be in sight
    document.addEventListener("visibilitychange", () => this.run());
    for (const event of ["pointerleave", "focusout"]) held?.addEventListener(event, () => setTimeout(() => this.run()));
  }

  /** Have the part loaded again, soon. */
  ask() {
    this.isWanted = true;
    this.run();
  }

  async run() {
    if (!this.isWanted || this.isBusy || !this.isSeen || document.hidden) return;
    if (this.wasLoaded && this.held?.matches(":hover, :focus-within")) return;
    [this.isWanted, this.isBusy] = [false, true];
    try {
      await this.load();
      this.wasLoaded = true;
    } catch (error) {
      if (!isTheServers(error)) throw error;
      this.isWanted = true;
    } finally {
      setTimeout(() => {
        this.isBusy = false;
        this.run();
      }, this.everyMs);
    }
  }
}

/** Return whether an error means that the server refused, is away or is slow, and not that this page is wrong. */
export function isTheServers(error) {
  return error instanceof Refused || error instanceof TypeError || ["AbortError", "TimeoutError"].includes(error.name);
}
