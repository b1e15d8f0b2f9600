/**
 * Deterministic CBOR (RFC 8949 section 4.2.1) of nested arrays of integers, text and bytes; nothing else, as protocol/encoding.py reads it.
 *
 * Integers that a Number cannot hold exactly come back as BigInt; bytes as Uint8Array.
 */

import { EncodingError, toHex } from "./bytes.js";

const MAX_DEPTH = 8;

/** Return the value whose one canonical encoding these bytes are. Throws EncodingError. */
export function decode(bytes) {
  const reader = new Reader(bytes);
  const value = reader.item(0);
  if (reader.offset !== bytes.length) throw new EncodingError("bytes after the end");
  return value;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.offset = 0;
  }

  take(count) {
    if (count > this.bytes.length - this.offset) throw new EncodingError("CBOR that is cut");
    this.offset += count;
    return this.bytes.slice(this.offset - count, this.offset);
  }

  item(depth) {
    const [first] = this.take(1);
    const [major, argument] = [first >> 5, this.argument(first & 31)];
    if (major === 0) return argument;
    if (major === 1) return typeof argument === "bigint" ? -1n - argument : -1 - argument;
    if (major === 2) return this.take(argument);
    if (major === 3) return this.text(argument);
    if (major === 4) return this.array(argument, depth);
    throw new EncodingError("CBOR of another kind than integers, strings and arrays");
  }

  /** Return an item's number, in its shortest form. */
  argument(short) {
    if (short < 24) return short;
    if (short > 27) throw new EncodingError("CBOR of a length that is not stated");
    const size = 1 << (short - 24);
    const value = BigInt("0x" + toHex(this.take(size)));
    if (value < (size === 1 ? 24n : 1n << BigInt(4 * size))) throw new EncodingError("CBOR that is not canonical");
    return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
  }

  text(length) {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.take(length));
    } catch (error) {
      throw error instanceof EncodingError ? error : new EncodingError("text that is not UTF-8");
    }
  }

  array(length, depth) {
    if (depth === MAX_DEPTH) throw new EncodingError(`nested deeper than ${MAX_DEPTH} arrays`);
    if (length > this.bytes.length - this.offset) throw new EncodingError("an array that is cut"); // an item has a byte at least
    return Array.from({ length }, () => this.item(depth + 1));
  }
}
