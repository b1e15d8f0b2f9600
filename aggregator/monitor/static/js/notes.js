/**
 * Signed tree heads: C2SP tlog-checkpoint in a C2SP signed note, opened as protocol/operators.py opens them, and Ed25519 by WebCrypto.
 *
 * Signatures of others than the operators, a witness's for example, are passed over here and counted.
 */

import { EncodingError, areEqual, concat, fromBase64, fromText, toHex } from "./bytes.js";
import { Unchecked, sha256, webCrypto } from "./merkle.js";

const MAX_NOTE_BYTES = 131072;
const MAX_SIGNATURES = 100;
// C2SP's signature types
const ED25519 = 1;
const COSIGNATURE = 4;
const TIME_BYTES = 8; // of a cosignature, before its signature
const P = 2n ** 255n - 19n;
// The y coordinates of the points of low order: with such a key one signature fits many messages.
const LOW_ORDER_Y = [
  0n,
  1n,
  P - 1n,
  2707385501144840649318225287225658788936804267575313519463743609750303402022n,
  55188659117513257062467267217118295137698188065244968500265048394206261417927n,
];

/** A signature that does not hold, or is not there. */
export class SignatureError extends Error {}

/** Return the origin line of a run's log (hex), and the name of its operators' keys. */
export function originOf(run) {
  return `manta/${run}`;
}

/**
 * Return {origin, size, root, others} of a note that `quorum` of the operators' `keys` signed, one of them at least under `name`; `others`
 * are the names of other signers. Throws EncodingError, SignatureError, Unchecked.
 */
export async function openTreeHead(note, name, keys, quorum) {
  const { text, signatures } = split(note);
  const known = [];
  for (const key of keys) {
    for (const [kind, as] of [[ED25519, name], [COSIGNATURE, `manta/witness/${toHex(key)}`]]) {
      known.push({ key, kind, name: as, id: (await sha256(concat(fromText(`${as}\n`), [kind], key))).slice(0, 4) });
    }
  }
  const signers = new Set();
  const others = [];
  let isByLog = false;
  for (const one of signatures) {
    const by = known.find((each) => each.name === one.name && areEqual(each.id, one.bytes.slice(0, 4)));
    if (by === undefined) {
      others.push(one.name);
      continue;
    }
    await verifyLine(by, text, one.bytes.slice(4));
    signers.add(toHex(by.key));
    isByLog ||= by.kind === ED25519;
  }
  if (!isByLog) throw new SignatureError(`the tree head has no signature of ${name}`);
  if (signers.size < quorum)
    throw new SignatureError(`the tree head is signed by ${signers.size} of ${keys.length} operators, and ${quorum} have to`);
  return { ...parseTreeHead(text), others };
}

async function verifyLine({ key, kind }, text, bytes) {
  if (kind === ED25519) return verifySignature(key, fromText(text), bytes);
  if (bytes.length !== TIME_BYTES + 64) throw new EncodingError("a cosignature has a time and a signature, and nothing more");
  const seconds = bytes.slice(0, TIME_BYTES).reduce((time, byte) => 256n * time + BigInt(byte), 0n);
  return verifySignature(key, fromText(`cosignature/v1\ntime ${seconds}\n${text}`), bytes.slice(TIME_BYTES));
}

/** Check an Ed25519 signature (64 bytes) of a message by a key (32 bytes). Throws SignatureError, Unchecked. */
export async function verifySignature(publicKey, message, signature) {
  checkPublicKey(publicKey);
  let key;
  try {
    key = await webCrypto().importKey("raw", publicKey, "Ed25519", false, ["verify"]);
  } catch (error) {
    if (error.name === "NotSupportedError") throw new Unchecked("this browser is too old to check Ed25519 signatures");
    if (error instanceof Unchecked) throw error;
    throw new SignatureError("the public key is refused");
  }
  const holds = signature.length === 64 && (await webCrypto().verify("Ed25519", key, signature, message));
  if (!holds) throw new SignatureError("the signature does not hold");
}

/** Refuse what cannot be a key of a run: a wrong length, a point that is not canonical or of low order. Throws SignatureError. */
function checkPublicKey(publicKey) {
  if (publicKey.length !== 32) throw new SignatureError(`a public key has 32 bytes, not ${publicKey.length}`);
  const y = BigInt("0x" + toHex(publicKey.slice().reverse())) & (2n ** 255n - 1n);
  if (y >= P || LOW_ORDER_Y.includes(y)) throw new SignatureError("public keys of low order or in non-canonical form are refused");
}

function hasControl(text) {
  return [...text].some((character) => character < " ");
}

function split(note) {
  if (typeof note !== "string" || !note.isWellFormed()) throw new EncodingError("a note is text in UTF-8");
  if (fromText(note).length > MAX_NOTE_BYTES) throw new EncodingError("the note is too long");
  if (hasControl(note.replaceAll("\n", ""))) throw new EncodingError("a note has control characters");
  const blank = note.lastIndexOf("\n\n");
  if (blank < 1 || !note.endsWith("\n") || blank === note.length - 2) {
    throw new EncodingError("a note is a text, a blank line and signature lines");
  }
  const lines = note.slice(blank + 2, -1).split("\n");
  if (lines.length > MAX_SIGNATURES) throw new EncodingError(`a note has at most ${MAX_SIGNATURES} signatures`);
  return { text: note.slice(0, blank + 1), signatures: lines.map(parseSignature) };
}

function parseSignature(line) {
  const [, name, encoded] = /^— ([^\s\u0085+]+) (\S+)$/u.exec(line) ?? [];
  if (name === undefined) throw new EncodingError("a signature line of a note is malformed");
  const bytes = fromBase64(encoded);
  if (bytes.length < 5) throw new EncodingError("a signature of a note is too short");
  return { name, bytes };
}

function parseTreeHead(text) {
  const [origin, size, root, ...extensions] = text.slice(0, -1).split("\n");
  if (!origin || !/^(0|[1-9][0-9]{0,18})$/.test(size ?? "") || extensions.includes("")) throw new EncodingError("a note is no tree head");
  const hash = fromBase64(root ?? "");
  if (hash.length !== 32) throw new EncodingError(`a root has 32 bytes, not ${hash.length}`);
  if (!Number.isSafeInteger(Number(size))) throw new EncodingError(`${size} entries are more than this page can count`);
  return { origin, size: Number(size), root: hash };
}
