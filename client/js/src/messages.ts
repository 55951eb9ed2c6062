// The messages of the relay protocol, as package proto of Ferry and its documentation
// describe them. Integers are big-endian only in RELAY.

/** Bytes that own their memory, as WebCrypto and WebSocket require. */
export type Bytes = Uint8Array<ArrayBuffer>

/** One message. Ids are the text of a UUID in lower case. */
export type Message =
  | { type: "BIND"; mode: number; nonce: number; connectionData: Bytes; mac: Bytes }
  | { type: "BIND_RECEIVED" }
  | { type: "PING"; id: string; number: number }
  | { type: "CONNECT_REQUEST"; id: string; connectionData: Bytes }
  | { type: "ACCEPTED"; from: string; to: string }
  | { type: "REJECTED" }
  | { type: "DISCONNECT"; from: string; to: string }
  | { type: "RELAY"; from: string; to: string; content: Bytes }
  | { type: "CLOSE"; id: string }
  | { type: "ERROR"; id: string; code: number }

const numbers = {
  BIND: 0, BIND_RECEIVED: 1, PING: 2, CONNECT_REQUEST: 3, ACCEPTED: 6, REJECTED: 8, DISCONNECT: 9, RELAY: 10, CLOSE: 11, ERROR: 12,
} as const

/** Sizes in bytes. */
export const ID_SIZE = 16, KEY_SIZE = 64, MAC_SIZE = 32, MAX_CONNECTION_DATA = 255, MAX_CONTENT = 1434

/** Encodes a message. Throws a RangeError for an id, a nonce or bytes of a wrong size. */
export function encode(m: Message): Bytes {
  switch (m.type) {
    case "BIND": return concat(unsignedBind(m.mode, m.nonce, m.connectionData), exactly(m.mac, MAC_SIZE))
    case "BIND_RECEIVED": case "REJECTED": return header(m.type)
    case "PING": return concat(header(m.type), idBytes(m.id), [m.number & 255, m.number >> 8])
    case "CONNECT_REQUEST": return concat(header(m.type), idBytes(m.id), [m.connectionData.length], atMost(m.connectionData, MAX_CONNECTION_DATA))
    case "ACCEPTED": case "DISCONNECT": return concat(header(m.type), idBytes(m.from), idBytes(m.to))
    case "RELAY": {
      const n = m.content.length
      return concat(header(m.type), idBytes(m.from), idBytes(m.to), [n >> 8, n & 255], atMost(m.content, MAX_CONTENT))
    }
    case "CLOSE": return concat(header(m.type), idBytes(m.id))
    case "ERROR": return concat(header(m.type), idBytes(m.id), [m.code])
  }
}

/**
 * Decodes a message; undefined means that it is malformed. Every size must be exact, except
 * that of REJECTED, whose body is not published. The bytes in the result share the memory of b.
 */
export function decode(b: Bytes): Message | undefined {
  if (b.length < 4 || b[0] !== 0xda || b[1] !== 0x72 || b[2] !== 0) return undefined
  const u8 = (at: number) => b[at] ?? 0
  const id = (at: number) => idText(b.subarray(at, at + ID_SIZE))
  const is = (size: number) => b.length === size
  switch (b[3]) {
    case numbers.BIND:
      return b.length >= 40 && is(40 + u8(7)) ? {
        type: "BIND", mode: u8(4), nonce: u8(5) | u8(6) << 8, connectionData: b.subarray(8, 8 + u8(7)), mac: b.subarray(8 + u8(7)),
      } : undefined
    case numbers.BIND_RECEIVED: return is(4) ? { type: "BIND_RECEIVED" } : undefined
    case numbers.PING: return is(22) ? { type: "PING", id: id(4), number: u8(20) | u8(21) << 8 } : undefined
    case numbers.CONNECT_REQUEST: return b.length > 20 && is(21 + u8(20)) ? { type: "CONNECT_REQUEST", id: id(4), connectionData: b.subarray(21) } : undefined
    case numbers.ACCEPTED: return is(36) ? { type: "ACCEPTED", from: id(4), to: id(20) } : undefined
    case numbers.REJECTED: return { type: "REJECTED" }
    case numbers.DISCONNECT: return is(36) ? { type: "DISCONNECT", from: id(4), to: id(20) } : undefined
    case numbers.RELAY: {
      const n = u8(36) << 8 | u8(37)
      return is(38 + n) && n <= MAX_CONTENT ? { type: "RELAY", from: id(4), to: id(20), content: b.subarray(38) } : undefined
    }
    case numbers.CLOSE: return is(20) ? { type: "CLOSE", id: id(4) } : undefined
    case numbers.ERROR: return is(21) ? { type: "ERROR", id: id(4), code: u8(20) } : undefined
  }
  return undefined
}

/** Returns the 64-byte key of an allocation as a key of WebCrypto, which only pages of https and of localhost have. */
export async function importKey(key: Bytes): Promise<CryptoKey> {
  if (globalThis.crypto?.subtle === undefined) throw new TypeError("crypto.subtle is missing: the page must come from https or localhost")
  return crypto.subtle.importKey("raw", exactly(key, KEY_SIZE), { name: "HMAC", hash: "SHA-256" }, false, ["sign"])
}

/** Encodes a BIND and signs it. The MAC covers all bytes before it. */
export async function signBind(key: CryptoKey, nonce: number, connectionData: Bytes): Promise<Bytes> {
  const unsigned = unsignedBind(0, nonce, connectionData)
  return concat(unsigned, new Uint8Array(await crypto.subtle.sign("HMAC", key, unsigned)))
}

/** Returns the text of an id of 16 bytes. */
export function idText(id: Uint8Array): string {
  const hex = Array.from(exactly(id, ID_SIZE), b => b.toString(16).padStart(2, "0")).join("")
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-")
}

/** Returns the 16 bytes of an id. */
export function idBytes(text: string): Bytes {
  const hex = text.match(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i)?.[0].replaceAll("-", "").match(/../g)
  if (!hex) throw new RangeError("not the text of an id: " + text)
  return Uint8Array.from(hex, pair => parseInt(pair, 16))
}

function unsignedBind(mode: number, nonce: number, data: Bytes): Bytes {
  if (!(nonce >= 0 && nonce <= 0xffff)) throw new RangeError("nonce " + nonce)
  return concat(header("BIND"), [mode, nonce & 255, nonce >> 8, data.length], atMost(data, MAX_CONNECTION_DATA))
}

function header(type: Message["type"]): Bytes { return Uint8Array.of(0xda, 0x72, 0, numbers[type]) }

function concat(...parts: ArrayLike<number>[]): Bytes {
  const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0))
  let at = 0
  for (const p of parts) {
    all.set(p, at)
    at += p.length
  }
  return all
}

function exactly<T extends Uint8Array>(b: T, size: number): T {
  if (b.length !== size) throw new RangeError(`${b.length} bytes, want ${size}`)
  return b
}

function atMost<T extends Uint8Array>(b: T, size: number): T {
  if (b.length > size) throw new RangeError(`${b.length} bytes, at most ${size}`)
  return b
}
