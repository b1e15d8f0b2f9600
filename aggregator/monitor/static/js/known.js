/**
 * Whether what this server calls the run and its operators is what the reader knows from elsewhere: the run's id, or a lone operator's key.
 *
 * An id is the hash of the run's manifest, and that names the operators' keys: so who knows the id knows the keys. Who knows one key of
 * several does not know the others.
 */

import { ask } from "./api.js";
import { fromBase64, toHex } from "./bytes.js";
import { decode } from "./cbor.js";
import { verdictOf } from "./log_checks.js";
import { ProofError, Unchecked, sha256 } from "./merkle.js";

const LEAST = 16; // digits: as many as manta-peer status prints
// fields of a manifest, see protocol/manifest.py
const OPERATORS = 15;
const QUORUM = 23;

/** Return the verdict {state, reason} on text that somebody pasted; `run` and `ledger`, with the operators' keys in hex, are the server's. */
export async function compare(text, run, ledger) {
  try {
    return { state: "true", reason: await matched(text.trim().toLowerCase(), run, ledger) };
  } catch (error) {
    return verdictOf(error);
  }
}

async function matched(known, run, { operators, quorum }) {
  if (!/^[0-9a-f]{16,64}$/.test(known)) throw new Unchecked(`give ${LEAST} to 64 digits of it, 0 to 9 and a to f`);
  const part = known.length < 64 ? ` begins with these ${known.length} digits` : "";
  if (operators.some((key) => key.startsWith(known))) {
    if (operators.length > 1) throw new Unchecked("that is the key of one operator of several, who do not sign alone: give the run's id");
    return `The key by which the log is signed${part || " is this one"}`;
  }
  if (!run.startsWith(known)) throw new ProofError("neither the run that is shown here nor the key that signs its log is that");
  const { manifest } = await ask("manifest");
  const bytes = fromBase64(manifest);
  if (toHex(await sha256(bytes)) !== run) throw new ProofError("the server gives another manifest than that of the run");
  const { [OPERATORS]: named, [QUORUM]: least } = decode(bytes);
  const isSame = Array.isArray(named) && named.length === operators.length && named.every((key, place) => isKey(key, operators[place]));
  const what = operators.length === 1 ? "key" : "keys";
  if (!isSame || Number(least) !== quorum) throw new ProofError(`the run's manifest does not name the ${what} that the log is signed by`);
  return `The run’s id${part || " is this one"}, and its manifest names the ${what} by which the log is signed`;
}

function isKey(value, key) {
  return value instanceof Uint8Array && toHex(value) === key;
}
