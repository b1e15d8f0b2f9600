/**
 * What an entry of the log says, read in the browser from the very bytes that its proof is about (docs/protocol.md, section 4).
 *
 * Only the fields that the page shows get a name; a record of another version is told as bytes whose meaning this page does not know.
 */

import { EncodingError, fromText, concat, toHex } from "./bytes.js";
import { decode } from "./cbor.js";
import { verifySignature } from "./notes.js";

// kind -> the fields of its record, in order
const FIELDS = {
  admission: "invitation key".split(" "),
  revocation: "run operator what target".split(" "),
  claim: "run round base key payout founder cohort local_steps work lots_root steps_root vector residual lot_ms shards".split(" "),
  contribution: "run round base founder claims body residual".split(" "),
  round: "run round base table rows weights mean state counted thresholds floor open_ms".split(" "),
  finding: "run auditor claim round row check lot outcome projection evidence".split(" "),
};
// kind -> the key that signs it
const SIGNERS = {
  admission: invitationKeyOf,
  revocation: (fields) => fields.operator,
  claim: (fields) => fields.key,
  contribution: (fields) => fields.founder,
  finding: (fields) => fields.auditor,
};
const PROTOCOL = 12; // the version of the protocol, for which all of them are signed

/** Return {kind, fields, signed}: fields by name; `signed` is {key, message, signature}, null for a round. Throws EncodingError. */
export function openEntry(bytes) {
  const entry = decode(bytes);
  if (!Array.isArray(entry) || entry.length !== 2 || typeof entry[0] !== "string" || !(entry[1] instanceof Uint8Array)) {
    throw new EncodingError("not an entry of a log");
  }
  const [kind, body] = entry;
  const names = Object.hasOwn(FIELDS, kind) ? FIELDS[kind] : null;
  if (names === null) return { kind, fields: null, signed: null };
  if (kind === "round") return { kind, fields: named(names, decode(body)), signed: null };
  const [payload, signature] = decode(body);
  const fields = named(names, decode(payload));
  const message = concat(fromText(`manta/${kind}/v${PROTOCOL}\n`), payload);
  return { kind, fields, signed: { key: SIGNERS[kind](fields), message, signature } };
}

/** Check that an opened entry was signed by the key that it names; a round has none of its own, the tree head has. */
export async function verifySigned(opened) {
  if (opened.signed) await verifySignature(opened.signed.key, opened.signed.message, opened.signed.signature);
}

/** Return a field as text: digests in hex, lists with their items. */
export function inWords(value) {
  if (value instanceof Uint8Array) return value.length ? toHex(value) : "none";
  if (Array.isArray(value)) return value.length ? value.map(inWords).join(", ") : "none";
  return String(value);
}

/** The key that signs for those whom an invitation lets in: the third field of its payload. */
function invitationKeyOf({ invitation: [payload] }) {
  return decode(payload)[2];
}

function named(names, values) {
  if (!Array.isArray(values) || values.length !== names.length) throw new EncodingError(`a record of ${names.length} fields is expected`);
  return Object.fromEntries(names.map((name, index) => [name, values[index]]));
}
