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
  claim: "run round base key payout founder cohort steps work given residual microbatch_ms shards partner".split(" "),
  contribution: "run round base founder claims included steps body residual".split(" "),
  round: "run round base first contributions weights mean state thresholds min_exponent open_ms".split(" "),
  verdict: "run auditor round contribution outcomes by".split(" "),
  settlement: "run commit".split(" "),
};
// kind -> the key that signs it
const SIGNERS = {
  admission: invitationKeyOf,
  revocation: (fields) => fields.operator,
  claim: (fields) => fields.key,
  contribution: (fields) => fields.founder,
  verdict: (fields) => fields.auditor,
};
const PROTOCOL = 14; // the version of the protocol, for which all of them are signed

/**
 * Return {kind, fields, claims, signed}: fields by name, those of each claim of a contribution too; `signed` has {key, message, signature}
 * of each signature in it, the first one that of whoever the entry is of. Throws EncodingError.
 */
export function openEntry(bytes) {
  const entry = decode(bytes);
  if (!Array.isArray(entry) || entry.length !== 2 || typeof entry[0] !== "string" || !(entry[1] instanceof Uint8Array)) {
    throw new EncodingError("not an entry of a log");
  }
  const [kind, body] = entry;
  const names = Object.hasOwn(FIELDS, kind) ? FIELDS[kind] : null;
  if (names === null || kind === "claim") return { kind, fields: null, claims: [], signed: [] };
  if (kind === "round" || kind === "settlement") return { kind, fields: named(names, decode(body)), claims: [], signed: [] };
  if (kind !== "contribution") {
    const { fields, signed } = openSigned(kind, decode(body));
    return { kind, fields, claims: [], signed: [signed] };
  }
  const [contribution, inside] = decode(body);
  const own = openSigned(kind, contribution);
  const claims = inside.map((one) => openSigned("claim", one));
  return { kind, fields: own.fields, claims: claims.map((one) => one.fields), signed: [own, ...claims].map((one) => one.signed) };
}

function openSigned(kind, [payload, signature]) {
  const fields = named(FIELDS[kind], decode(payload));
  const message = concat(fromText(`manta/${kind}/v${PROTOCOL}\n`), payload);
  return { fields, signed: { key: SIGNERS[kind](fields), message, signature } };
}

/** Check that what is in an opened entry was signed by the keys that it names; a round or a settlement has none of its own, the tree head has. */
export async function verifySigned(opened) {
  await Promise.all(opened.signed.map(({ key, message, signature }) => verifySignature(key, message, signature)));
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
