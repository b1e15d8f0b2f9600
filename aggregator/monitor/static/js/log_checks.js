/**
 * What this browser knows of the log by its own checks: the tree head that it saw first, the newest one, and that both are of one history.
 *
 * The head seen first is kept in the browser, by run: a log that was rewritten while the page was closed is found out at the next visit.
 * A verdict is {state: "true" | "false" | "unchecked" | "busy", reason}.
 */

import { ask, isTheServers } from "./api.js";
import { EncodingError, fromBase64, fromHex, peerName, toHex } from "./bytes.js";
import { openEntry, verifySigned } from "./entries.js";
import { ProofError, Unchecked, leafHash, verifyConsistency, verifyInclusion } from "./merkle.js";
import { SignatureError, openTreeHead, originOf } from "./notes.js";

/** Return what an error says of a check; an error of the page's own is thrown on. */
export function verdictOf(error) {
  if ([ProofError, SignatureError, EncodingError].some((kind) => error instanceof kind)) return { state: "false", reason: error.message };
  if (error instanceof Unchecked) return { state: "unchecked", reason: error.message };
  if (isTheServers(error)) return { state: "unchecked", reason: `the server did not give the proof (${error.message})` };
  throw error;
}

/** Dispatches "change" when a head was checked. */
export class LogChecks extends EventTarget {
  /** Check the log of a run (hex), signed by `quorum` of its operators' keys (hex). */
  constructor(run, { operators, quorum }) {
    super();
    this.keys = operators.map(fromHex);
    this.quorum = quorum;
    this.origin = originOf(run);
    this.store = `manta.head.${run}`;
    this.first = null;
    this.newest = null; // the newest head that holds
    this.verdict = { state: "busy", reason: "" };
    this.evidence = null;
    this.numChecks = 0;
    this.waiting = null;
  }

  /** Check a head as of `/api/ledger/head`; while one is being checked only the newest waits. */
  async take(head) {
    const isBusy = this.waiting !== null || this.isBusy;
    this.waiting = head;
    if (isBusy) return;
    this.isBusy = true;
    while (this.waiting) {
      const next = this.waiting;
      this.waiting = null;
      await this.checkHead(next);
      this.dispatchEvent(new Event("change"));
    }
    this.isBusy = false;
  }

  async checkHead(head) {
    if (this.evidence) return; // what was false once is not true again
    let proof = [];
    try {
      await this.recall();
      const found = { ...(await this.open(head.note)), note: head.note };
      if (found.size !== head.size || toHex(found.root) !== head.root)
        throw new ProofError("the server says another state than the signed one");
      const before = this.newest ?? this.first;
      if (before) {
        if (found.size < before.size) throw new ProofError(`the log had ${before.size} entries and now has ${found.size}`);
        proof = before.size === found.size || !before.size ? [] : await this.consistency(before.size, found.size);
        await verifyConsistency(before.size, found.size, proof, before.root, found.root);
      }
      if (!this.first) this.remember(found);
      this.newest = found;
      this.numChecks += 1;
      this.verdict = { state: "true", reason: "" };
    } catch (error) {
      this.verdict = verdictOf(error);
      if (this.verdict.state === "false") {
        this.evidence = {
          reason: this.verdict.reason,
          first: this.first?.note ?? "",
          before: this.newest?.note ?? "",
          now: head.note,
          proof: proof.map(toHex),
        };
      }
    }
  }

  async open(note) {
    const found = await openTreeHead(note, this.origin, this.keys, this.quorum);
    if (found.origin !== this.origin) throw new ProofError(`a tree head of another log: ${found.origin}`);
    return found;
  }

  async consistency(old, now) {
    const { proof } = await ask("ledger/consistency", { old, new: now });
    return proof.map(fromHex);
  }

  /** Take up the head that this browser saw first, if it did. */
  async recall() {
    if (this.first || this.wasRecalled) return;
    this.wasRecalled = true;
    const note = stored(() => localStorage.getItem(this.store));
    if (!note) return;
    try {
      this.first = { ...(await this.open(note)), note };
    } catch (error) {
      if (verdictOf(error).state !== "false") throw error;
      stored(() => localStorage.removeItem(this.store)); // somebody else wrote it there: the operator did not sign it
    }
  }

  remember(head) {
    this.first = head;
    stored(() => localStorage.setItem(this.store, head.note));
  }

  /**
   * Return {verdict, steps, opened, index}: whether an entry is under the newest head that holds, what was done to know it ([text, what was
   * found] each), and what it says.
   * With `peer`, the entry has to have a claim of that peer's.
   */
  async prove(index, peer = null) {
    const steps = [];
    let opened = null;
    try {
      const head = this.newest;
      if (!head) throw new Unchecked(this.verdict.reason || "no signed state of the log has been checked yet");
      const [{ entry }, { proof }] = await Promise.all([ask(`ledger/entries/${index}`), ask("ledger/proof", { index, size: head.size })]);
      const bytes = fromBase64(entry);
      const leaf = await leafHash(bytes);
      steps.push([`Its ${bytes.length} bytes have the hash`, toHex(leaf)]);
      await verifyInclusion(leaf, index, head.size, proof.map(fromHex), head.root);
      steps.push([`With ${proof.length} hashes beside it that leads to the root`, toHex(head.root)]);
      const by = this.keys.length === 1 ? "the operator's key" : `${this.quorum} or more of the operators' keys`;
      steps.push([`That root of ${head.size} entries is signed by ${by}`, this.keys.map(toHex).join(", ")]);
      opened = openEntry(bytes);
      await verifySigned(opened);
      const [own, ...others] = opened.signed;
      if (own) steps.push([`It is a ${opened.kind}; its own signature holds too, by`, peerName(own.key)]);
      if (others.length) steps.push(["So do those of its claims, by", others.map((one) => peerName(one.key)).join(", ")]);
      if (peer && !opened.claims.some((claim) => peerName(claim.key) === peer))
        throw new ProofError("it has no claim of this computer");
      return { index, steps, opened, verdict: { state: "true", reason: "" } };
    } catch (error) {
      return { index, steps, opened, verdict: verdictOf(error) };
    }
  }
}

/** Return what the browser's store gives; null where it gives none. */
function stored(use) {
  try {
    return use();
  } catch {
    return null; // a browser may keep nothing; then the head seen first is this visit's
  }
}
