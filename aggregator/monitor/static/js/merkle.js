/**
 * The verifier of RFC 9162's proofs, computed in this browser: what the server says of them is not asked.
 *
 * Hashes are Uint8Arrays of 32 bytes. All checks return nothing, or throw ProofError; where the browser gives a page no hashing
 * (it does over https and on this very computer) they throw Unchecked: that is neither true nor false.
 */

import { areEqual, concat } from "./bytes.js";

const HASH_BYTES = 32;

/** A proof that does not hold. */
export class ProofError extends Error {}

/** What this browser cannot check, and why. */
export class Unchecked extends Error {}

/** Return the browser's own cryptography. Throws Unchecked. */
export function webCrypto() {
  if (!globalThis.crypto?.subtle) {
    throw new Unchecked("a browser checks proofs only on pages that come over https or from the same computer");
  }
  return globalThis.crypto.subtle;
}

/** Return the SHA-256 digest of bytes. */
export async function sha256(bytes) {
  return new Uint8Array(await webCrypto().digest("SHA-256", bytes));
}

/** Return the hash of one entry, SHA-256(00 || entry). */
export function leafHash(entry) {
  return sha256(concat([0], entry));
}

/** Return the hash of an inner node, SHA-256(01 || left || right). */
export function nodeHash(left, right) {
  return sha256(concat([1], left, right));
}

/** Check that a leaf stands at `index` of the tree of `size` leaves with this root (RFC 9162 section 2.1.3.2). */
export async function verifyInclusion(leaf, index, size, proof, root) {
  checkHashes([leaf, root], "a hash");
  checkPath(proof);
  checkSize(size);
  if (!Number.isSafeInteger(index) || index < 0 || index >= size) throw new ProofError(`a tree of ${size} leaves has no leaf ${index}`);
  let found = leaf;
  const climb = new Climb(index, size - 1);
  for (const sibling of proof) {
    if (climb.isAtTop) throw new ProofError("the inclusion proof is too long");
    found = climb.isRightOfSibling ? await nodeHash(sibling, found) : await nodeHash(found, sibling);
    climb.up();
  }
  if (!climb.isAtTop) throw new ProofError("the inclusion proof is too short");
  if (!areEqual(found, root)) throw new ProofError("the inclusion proof leads to another root");
}

/** Check that the tree of `oldSize` leaves is a prefix of that of `newSize` (RFC 9162 section 2.1.4.2). */
export async function verifyConsistency(oldSize, newSize, proof, oldRoot, newRoot) {
  checkHashes([oldRoot, newRoot], "a root");
  checkPath(proof);
  checkSize(oldSize);
  checkSize(newSize);
  if (oldSize > newSize) throw new ProofError(`a tree of ${oldSize} leaves is no prefix of one of ${newSize}`);
  const empty = await sha256(new Uint8Array());
  if ((oldSize === 0 && !areEqual(oldRoot, empty)) || (newSize === 0 && !areEqual(newRoot, empty))) {
    throw new ProofError("this is not the root of the empty tree");
  }
  if (oldSize === 0 || oldSize === newSize) {
    if (proof.length) throw new ProofError("the consistency proof is too long");
    if (oldSize === newSize && !areEqual(oldRoot, newRoot)) throw new ProofError("two roots of trees of one size");
    return;
  }
  // An old tree that is one complete subtree is not named in the proof: the verifier has its root.
  const path = isPowerOfTwo(oldSize) ? [oldRoot, ...proof] : proof;
  if (!path.length) throw new ProofError("the consistency proof is too short");
  await climbBoth(oldSize, newSize, path, oldRoot, newRoot);
}

async function climbBoth(oldSize, newSize, path, oldRoot, newRoot) {
  const climb = new Climb(oldSize - 1, newSize - 1);
  climb.skipRightTurns();
  let [oldFound, newFound] = [path[0], path[0]];
  for (const sibling of path.slice(1)) {
    if (climb.isAtTop) throw new ProofError("the consistency proof is too long");
    if (climb.isRightOfSibling) {
      [oldFound, newFound] = [await nodeHash(sibling, oldFound), await nodeHash(sibling, newFound)];
    } else {
      newFound = await nodeHash(newFound, sibling);
    }
    climb.up();
  }
  if (!climb.isAtTop) throw new ProofError("the consistency proof is too short");
  if (!areEqual(oldFound, oldRoot) || !areEqual(newFound, newRoot)) throw new ProofError("the consistency proof leads to other roots");
}

/** The way from a node up to the root. Sizes may pass 2^32, so halves are taken by division, not by shifts. */
class Climb {
  constructor(position, last) {
    this.position = position;
    this.last = last; // the last node of this level
  }

  get isAtTop() {
    return this.last === 0;
  }

  get isRightOfSibling() {
    return this.position % 2 === 1 || this.position === this.last;
  }

  /** Go up past the hash that was just made. A last node without a sibling was carried up as it is. */
  up() {
    if (this.isRightOfSibling) while (this.position % 2 === 0 && this.position > 0) this.halve();
    this.halve();
  }

  skipRightTurns() {
    while (this.position % 2 === 1) this.halve();
  }

  halve() {
    this.position = Math.floor(this.position / 2);
    this.last = Math.floor(this.last / 2);
  }
}

function isPowerOfTwo(size) {
  let rest = size;
  while (rest % 2 === 0) rest /= 2;
  return rest === 1;
}

function checkHashes(values, what) {
  if (!values.every((value) => value instanceof Uint8Array && value.length === HASH_BYTES)) {
    throw new ProofError(`${what} is not ${HASH_BYTES} bytes`);
  }
}

function checkPath(proof) {
  if (!Array.isArray(proof)) throw new ProofError("a proof is a sequence of hashes");
  if (proof.length > 64) throw new ProofError("the proof is too long");
  checkHashes(proof, "a hash of the proof");
}

function checkSize(size) {
  if (!Number.isSafeInteger(size) || size < 0) throw new ProofError(`${size} is no tree size`);
}
