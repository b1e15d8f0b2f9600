/** Bytes as text and back: hex, canonical base64, and a key as the name that people know a peer by. No I/O. */

const BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
// The identity multihash of libp2p's protobuf of an Ed25519 public key, before its 32 bytes (docs/protocol.md, section 3).
const PEER_ID_PREFIX = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/** Bytes that are not of the form that was agreed. */
export class EncodingError extends Error {}

/** Return the Uint8Array of lower-case hex. Throws EncodingError. */
export function fromHex(text) {
  if (typeof text !== "string" || text.length % 2 || !/^[0-9a-f]*$/.test(text)) throw new EncodingError("this is not hexadecimal");
  return Uint8Array.from({ length: text.length / 2 }, (_, index) => parseInt(text.slice(2 * index, 2 * index + 2), 16));
}

/** Return bytes as lower-case hex. */
export function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the Uint8Array of base64 in its one canonical form. Throws EncodingError. */
export function fromBase64(text) {
  let bytes;
  try {
    bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  } catch {
    throw new EncodingError("malformed base64");
  }
  if (toBase64(bytes) !== text) throw new EncodingError("base64 that is not canonical");
  return bytes;
}

/** Return bytes as base64. */
export function toBase64(bytes) {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

/** Return the bytes of text in UTF-8. */
export function fromText(text) {
  return new TextEncoder().encode(text);
}

/** Return whether two Uint8Arrays hold the same bytes. */
export function areEqual(left, right) {
  return left.length === right.length && left.every((byte, index) => byte === right[index]);
}

/** Return all of the parts (Uint8Array or number[]) in one Uint8Array. */
export function concat(...parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    whole.set(part, offset);
    offset += part.length;
  }
  return whole;
}

/** Return the name of a peer, 12D3Koo..., from its Ed25519 public key (32 bytes). */
export function peerName(key) {
  let number = BigInt("0x" + toHex(concat(PEER_ID_PREFIX, key)));
  let text = "";
  for (; number > 0n; number /= 58n) text = BASE58[Number(number % 58n)] + text;
  return BASE58[0] + text; // the multihash begins with one zero byte
}
