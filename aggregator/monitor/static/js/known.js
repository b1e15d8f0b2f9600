/**
 * Whether what this server calls the run and its operator is what the reader knows from elsewhere: the run's id or the operator's key.
 *
 * An id is the hash of the run's manifest, and that names the operators' keys: so who knows the id knows the key.
 */

import { ask } from "./api.js";
import { fromBase64, toHex } from "./bytes.js";
import { decode } from "./cbor.js";
import { verdictOf } from "./log_checks.js";
import { ProofError, Unchecked, sha256 } from "./merkle.js";

const LEAST = 16; // digits: as many as manta-peer status prints
const OPERATORS = 15; // the field of a manifest, see protocol/records.py

/** Return the verdict {state, reason} on text that somebody pasted; `run` and `operator` are those of the server, in hex. */
export async function compare(text, run, operator) {
  try {
    return { state: "true", reason: await matched(text.trim().toLowerCase(), run, operator) };
  } catch (error) {
    return verdictOf(error);
  }
}

async function matched(known, run, operator) {
  if (!/^[0-9a-f]{16,64}$/.test(known)) throw new Unchecked(`give ${LEAST} to 64 digits of it, 0 to 9 and a to f`);
  const part = known.length < 64 ? ` begins with these ${known.length} digits` : "";
  if (operator.startsWith(known)) return `The key by which the log is signed${part || " is this one"}`;
  if (!run.startsWith(known)) throw new ProofError("neither the run that is shown here nor the key that signs its log is that");
  const { manifest } = await ask("manifest");
  const bytes = fromBase64(manifest);
  if (toHex(await sha256(bytes)) !== run) throw new ProofError("the server gives another manifest than that of the run");
  const operators = decode(bytes)[OPERATORS];
  if (!Array.isArray(operators) || !operators.some((key) => key instanceof Uint8Array && toHex(key) === operator))
    throw new ProofError("the run's manifest does not name the key that signs this log");
  return `The run’s id${part || " is this one"}, and its manifest names the key by which the log is signed`;
}
