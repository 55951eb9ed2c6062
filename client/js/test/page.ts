// What the tests of internal/test/blackbox call in a page, or in Node: see javascript_test.go there.

import * as client from "../src/index.ts"
import * as messages from "../src/messages.ts"

const { Allocations, Connection, RelayError, ApiError } = client

const hex = (b: Uint8Array) => Array.from(b, x => x.toString(16).padStart(2, "0")).join("")
const bytes = (text: string): client.Bytes => Uint8Array.from(text.match(/../g) ?? [], pair => parseInt(pair, 16))
const toHex = (_: string, value: unknown) => value instanceof Uint8Array ? hex(value) : value

/** Decodes each packet; the fields as JSON and the packet encoded again, or null. */
function decodeAll(packets: string[]) {
  return packets.map(packet => {
    const m = messages.decode(bytes(packet))
    return m ? { fields: JSON.parse(JSON.stringify(m, toHex)), again: hex(messages.encode(m)) } : null
  })
}

/** Signs a BIND for each [key, nonce, connection data]. */
function signAll(binds: [string, number, string][]) {
  return Promise.all(binds.map(async ([key, nonce, data]) => hex(await messages.signBind(await messages.importKey(bytes(key)), nonce, bytes(data)))))
}

/** A player that records what happens, and as a host returns each message to its sender. */
class Player {
  readonly connection: client.Connection
  readonly allocation: client.Allocation
  joined: string[] = []
  left: string[] = []
  heard: Record<string, number> = {} // messages by peer, each text once
  reasons: string[] = [] // of events, in words
  changes: string[] = [] // reconnecting, reconnected
  at: Record<string, number> = {} // when a kind of event last came, in ms since the page began
  ended = ""
  endedBy = ""
  texts = new Set<string>()
  echoed = new Set<string>() // the same, from any peer

  constructor(connection: client.Connection, allocation: client.Allocation) {
    this.connection = connection
    this.allocation = allocation
    this.read().then(() => { this.ended = "closed" }, e => {
      this.ended = e instanceof RelayError ? e.reason : String(e)
      this.endedBy = String(e)
      this.at["ended"] = performance.now()
    })
  }

  async read() {
    for await (const e of this.connection) {
      this.at[e.type] = performance.now()
      if ("reason" in e) this.reasons.push(e.reason)
      if (e.type === "join") this.joined.push(e.peer)
      else if (e.type === "leave") this.left.push(e.peer)
      else if (e.type === "message") this.hear(e.peer, e.content)
      else this.changes.push(e.type)
    }
  }

  hear(peer: string, content: client.Bytes) {
    const said = new TextDecoder().decode(content)
    const text = peer + " " + said
    this.echoed.add(said)
    if (!this.texts.has(text)) this.heard[peer] = (this.heard[peer] ?? 0) + 1
    this.texts.add(text)
    if (!this.allocation.hostConnectionData) this.connection.send(content, peer)
  }

  log() {
    const { joined, left, heard, ended, endedBy, reasons, changes, at } = this
    return { joined, left, heard, ended, endedBy, reasons, changes, at, stats: this.connection.stats(), peers: [...this.connection.peers], nonce: this.connection.nonce }
  }
}

const players: Record<string, Player> = {}

/** Opens a player of that name with an allocation. */
async function open(name: string, allocation: client.Allocation, options?: client.ConnectionOptions) {
  return players[name] = new Player(await Connection.open(allocation, options), allocation)
}

/** Hosts a match and returns its join code. */
async function host(name: string, api: string, token: string, players: number, options?: client.ConnectionOptions) {
  const calls = new Allocations(api, token)
  const { allocation } = await open(name, await calls.allocate(players), options)
  return calls.joinCode(allocation)
}

/** Joins by a code, connects, and returns the own id. */
async function join(name: string, api: string, token: string, code: string, options?: client.ConnectionOptions) {
  const { connection } = await open(name, await new Allocations(api, token).join(code), options)
  await connection.connect()
  return connection.id
}

/** Sends the texts from..to-1 to the host, which returns them; again, until each has come back: the way may lose some. */
function say(name: string, from: number, to: number) {
  const { connection, echoed } = player(name)
  let missing = Array.from({ length: to - from }, (_, i) => "text " + (from + i))
  const send = () => missing.forEach((text, i) => {
    const bytes = new TextEncoder().encode(text)
    connection.send(i % 2 ? new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength) : bytes)
  })
  send()
  const again = setInterval(() => {
    missing = missing.filter(text => !echoed.has(text))
    try {
      if (missing.length > 0) return send()
    } catch { /* It has no link any more. */ }
    clearInterval(again)
  }, 1000)
}

function player(name: string): Player {
  const p = players[name]
  if (!p) throw new Error("no player " + name)
  return p
}

/** Calls f and returns what it throws. */
async function failure(f: () => unknown) {
  try {
    await f()
  } catch (e) {
    if (e instanceof ApiError) return { name: e.name, message: e.message, status: e.status, code: e.code, title: e.title, detail: e.detail }
    if (e instanceof RelayError) return { name: e.name, message: e.message, reason: e.reason }
    return e instanceof Error ? { name: e.name, message: e.message } : { name: "", message: String(e) }
  }
  return { name: "", message: "it did not fail" }
}

Object.assign(globalThis, { ferry: { ...client, ...messages, bytes, hex, decodeAll, signAll, open, host, join, say, player, failure } })
