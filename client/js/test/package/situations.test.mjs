// What a game is told in each situation, and after how long, by the package as it is installed, in
// Node against the real relay. FERRY is the relay's binary. Each test has a relay of its own, and
// all run at once, since they mostly wait.

import assert from "node:assert/strict"
import { spawn } from "node:child_process"
import { once } from "node:events"
import { mkdtemp, rm, writeFile } from "node:fs/promises"
import net from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { describe, it } from "node:test"
import { setTimeout as sleep } from "node:timers/promises"
import WebSocket, { WebSocketServer } from "ws"

import { Allocations, ApiError, Connection, measure, migrate, RelayError } from "@ferryrelay/client"

const binary = process.env.FERRY
if (!binary) throw new Error("FERRY is not set: the tests need the relay's binary")

/** How long a test waits for what has to come; generous, for a slow machine. */
const LIMIT = 60_000

/** Times in which an idle player is not cut off while the machine is slow; the situations that are about them set their own. */
const unhurried = ["--bind-timeout=5m", "--idle-timeout=5m"]

/** A relay with the Allocations API, which keeps its ports and its state over a restart. */
class Ferry {
  constructor(t, dir, flags) { Object.assign(this, { t, dir, flags }) }

  static async start(t, ...flags) {
    const dir = await mkdtemp(join(tmpdir(), "ferry-js-"))
    t.after(() => rm(dir, { recursive: true, force: true }))
    await writeFile(join(dir, "ferry.yaml"), "tokens:\n  - secret: " + token + "\n    project: game\n    environment: test\n    kind: server\n", { mode: 0o600 })
    const f = new Ferry(t, dir, flags)
    f.ports = ["127.0.0.1:0", "127.0.0.1:0"]
    await f.launch()
    t.after(() => f.kill())
    return f
  }

  /** Starts the process, at the ports that it had before. */
  async launch() {
    const [udp, http] = this.ports
    this.process = spawn(binary, ["serve", "--config", join(this.dir, "ferry.yaml"), "--state-dir", join(this.dir, "state"), "--udp", udp, "--http", http, "--admin", "127.0.0.1:0", "--advertise", "127.0.0.1", ...this.flags], { stdio: ["ignore", "pipe", "ignore"] })
    for await (const line of createInterface(this.process.stdout)) {
      if (!line.startsWith("ready")) continue
      const field = name => line.match(new RegExp(name + "=(\\S+)"))[1]
      this.api = field("http")
      this.ports = [field("udp"), new URL(this.api).host]
      this.process.stdout.resume()
      return
    }
    throw new Error("ferry does not start")
  }

  async kill() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return
    const exit = once(this.process, "exit")
    this.process.kill("SIGCONT")
    this.process.kill("SIGKILL")
    await exit
  }
}

const token = "a-secret-of-the-tests"

/** A way from a player to the relay: a TCP proxy whose network the test breaks. */
class Path {
  static async to(t, f) {
    const p = new Path()
    p.sockets = new Set()
    p.silent = false // nothing gets through, as in a network that has gone
    p.lose = () => 0 // ms for which a packet is held up: TCP sends what was lost again
    p.server = net.createServer(socket => {
      const [host, port] = f.ports[1].split(":")
      const other = net.connect(Number(port), host)
      for (const [from, to] of [[socket, other], [other, socket]]) {
        p.sockets.add(from)
        let last = Promise.resolve()
        from.on("data", b => { if (!p.silent) last = last.then(() => sleep(p.lose())).then(() => { if (!to.destroyed && !p.silent) to.write(b) }) })
        from.on("error", () => {})
        from.on("close", () => { p.sockets.delete(from); if (!p.silent) to.destroy() })
      }
    })
    p.server.listen(0, "127.0.0.1")
    await once(p.server, "listening")
    t.after(() => { p.server.close(); p.reset() })
    p.url = `ws://127.0.0.1:${p.server.address().port}/`
    return p
  }

  reset() { for (const s of this.sockets) s.destroy() }
}

/** The same relay as one that drops a link on which nothing was sent for 10 s; linked is whether there is one. */
async function oldRelay(t, f) {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0 }), old = { linked: false }
  await once(server, "listening")
  t.after(() => server.close())
  server.on("connection", player => {
    const relay = new WebSocket("ws://" + f.ports[1]), early = []
    const pass = m => relay.readyState === WebSocket.OPEN ? relay.send(m) : early.push(m)
    relay.on("open", () => early.forEach(pass))
    player.on("message", m => {
      if (m[3] === 3) old.linked = true // CONNECT_REQUEST
      if (m[3] !== 10 || old.linked) pass(m)
      else player.send(Buffer.concat([Buffer.of(0xda, 0x72, 0, 12), m.subarray(4, 20), Buffer.of(5)])) // RELAY: ERROR 5
    })
    relay.on("message", m => { if (m[3] !== 10 || old.linked) player.send(m) })
    player.on("close", () => relay.close())
    relay.on("close", () => player.close())
    relay.on("error", () => {})
  })
  old.url = `ws://127.0.0.1:${server.address().port}/`
  return old
}

/** A player that records what the game is told, and as a host returns each message. */
class Player {
  events = [] // {what, reason, at}
  heard = [] // texts
  seen = new Set()

  constructor(t, connection, allocation) {
    Object.assign(this, { connection, allocation, began: performance.now() })
    t.after(() => connection.close())
    this.reading = this.read()
  }

  async read() {
    try {
      for await (const e of this.connection) {
        if (e.type === "message") {
          const text = new TextDecoder().decode(e.content)
          this.heard.push(text)
          this.seen.add(text)
          if (!this.allocation.hostConnectionData && text !== "flood") this.connection.send(e.content, e.peer)
        } else if (e.type !== "join") this.events.push({ what: e.type, reason: e.reason, at: performance.now() })
      }
    } catch (e) {
      this.events.push({ what: "ended", reason: e.message, at: performance.now() })
    }
  }

  /** The kinds of what the game was told, in order. */
  get kinds() { return this.events.map(e => e.what).join(" ") }

  say(text, to) { return this.connection.send(new TextEncoder().encode(text), to) }

  /** Sends a text until it has come back. */
  async reach(text) {
    for (const end = performance.now() + LIMIT; !this.seen.has(text); await sleep(100)) {
      assert(performance.now() < end, `${text} never comes back; the game was told: ${JSON.stringify(this.events)}`)
      this.say(text)
    }
  }

  /** Waits until the game is told that, and returns it. */
  async waitFor(what) {
    for (const end = performance.now() + LIMIT; ; await sleep(20)) {
      const e = this.events.find(e => e.what === what)
      if (e) return e
      assert(performance.now() < end, `the game is never told ${what}, only ${JSON.stringify(this.events)}`)
    }
  }
}

async function open(t, allocation, options = {}) {
  return new Player(t, await Connection.open(allocation, { WebSocket, ...options }), allocation)
}

/** A match of a host and a player, who has been heard. */
async function match(t, f, options = {}) {
  const api = new Allocations(f.api, token), a = await api.allocate(4)
  const host = await open(t, a, options.host), code = await api.joinCode(a)
  const player = await open(t, await api.join(code), options.player)
  await player.connection.connect()
  if (!options.silent) await player.reach("first")
  return { api, code, host, player }
}

/** Demands that something took a time, with a margin above for a slow machine. */
function within(t, what, ms, least, most) {
  t.diagnostic(`${what} after ${Math.round(ms)} ms`)
  assert(ms >= least && ms <= most + 20_000, `${what} after ${Math.round(ms)} ms, want ${least} to ${most}`)
}

describe("situations", { concurrency: 20, timeout: 240_000 }, () => {
  it("idle 12 s: nothing, and the next message arrives", async t => {
    const { player, host } = await match(t, await Ferry.start(t), { silent: true })
    await sleep(12_000)
    await player.reach("after the pause")
    assert.equal(player.kinds + host.kinds, "")
  })

  it("idle 12 s, a relay that drops silent links: nothing, and a later message arrives", async t => {
    const f = await Ferry.start(t, ...unhurried), old = await oldRelay(t, f)
    const { player, host } = await match(t, f, { player: { url: old.url } })
    old.linked = false
    const { connects } = player.connection.stats()
    await player.reach("after the pause")
    assert.equal(player.kinds + host.kinds, "")
    assert(player.connection.stats().errors[5] > 0)
    assert.equal(player.connection.stats().connects, connects + 1)
  })

  it("new address: reconnecting at once, reconnected, and the match goes on", async t => {
    const f = await Ferry.start(t, ...unhurried), path = await Path.to(t, f)
    const { player, host } = await match(t, f, { player: { url: path.url } })
    const at = performance.now()
    path.reset() // as the system does when the address has gone
    within(t, "reconnecting", (await player.waitFor("reconnecting")).at - at, 0, 100)
    within(t, "reconnected", (await player.waitFor("reconnected")).at - at, 0, 1500)
    await player.reach("from a new address")
    assert.equal(player.kinds + host.kinds, "reconnecting reconnected")
    assert.match(player.events[0].reason, /the WebSocket was closed with 1006/)
    assert.equal(player.connection.stats().reconnects, 1)
  })

  it("new addresses, each after a second: the match goes on", async t => {
    const f = await Ferry.start(t, ...unhurried), path = await Path.to(t, f)
    const { player, host } = await match(t, f, { player: { url: path.url } })
    for (let i = 0; i < 12; i++) {
      path.reset()
      await player.reach("from a new address, " + i)
      await sleep(1000)
    }
    assert.equal(host.kinds, "")
    assert.equal(player.connection.connected, true)
  })

  it("new network, the old one silent: reconnecting after three PINGs, and the match goes on", async t => {
    const f = await Ferry.start(t, ...unhurried), path = await Path.to(t, f)
    const { player, host } = await match(t, f, { player: { url: path.url } })
    const at = performance.now(), { pings } = player.connection.stats()
    path.silent = true
    const { reason, at: noticed } = await player.waitFor("reconnecting")
    assert.match(reason, /none of three PINGs/)
    within(t, "reconnecting", noticed - at, 1000, 4500)
    assert(player.connection.stats().pings <= pings + 5)
    assert.equal(player.say("while it reconnects"), false)
    path.silent = false
    path.reset()
    await player.waitFor("reconnected")
    await player.reach("from a new network")
    assert.equal(player.kinds + host.kinds, "reconnecting reconnected")
    const { loss, rtt } = player.connection.stats()
    assert(rtt > 0 && loss >= 0)
  })

  it("host in a new network: its players stay", async t => {
    const f = await Ferry.start(t, ...unhurried), path = await Path.to(t, f)
    const { player, host } = await match(t, f, { host: { url: path.url } })
    const before = [...host.connection.peers]
    path.reset()
    await host.waitFor("reconnected")
    await player.reach("to the host's new network")
    assert.deepEqual([...host.connection.peers], before)
    assert.equal(host.kinds + player.kinds, "reconnecting reconnected")
  })

  it("host killed: leave when the relay has ended it, and the reason", async t => {
    const f = await Ferry.start(t), path = await Path.to(t, f)
    const { player, code, api } = await match(t, f, { host: { url: path.url } })
    const at = performance.now()
    path.silent = true // its process has gone and its machine says nothing
    const talk = setInterval(() => { try { player.say("hello?") } catch {} }, 200)
    t.after(() => clearInterval(talk))
    const { at: left, reason } = await player.waitFor("leave")
    within(t, "leave", left - at, 8000, 45_000)
    assert.match(reason, /the host has ended/)
    assert.equal(player.kinds, "leave")
    assert.equal((await failure(() => player.say("nobody"))).reason, "not-connected")
    assert.equal((await failure(() => player.connection.connect())).reason, "not-found")
    assert.equal((await failure(() => api.join(code))).code, 15009)
  })

  it("host leaves: leave at once, and the reason", async t => {
    const { player, host } = await match(t, await Ferry.start(t, ...unhurried))
    const at = performance.now()
    host.connection.close()
    const { at: left, reason } = await player.waitFor("leave")
    within(t, "leave", left - at, 0, 500)
    assert.match(reason, /the peer has ended the link/)
    assert.equal(player.connection.connected, true)
  })

  it("relay stopped 3 s: at most reconnecting and reconnected, and the match goes on", async t => {
    const f = await Ferry.start(t), { player, host } = await match(t, f)
    f.process.kill("SIGSTOP")
    await sleep(3000)
    f.process.kill("SIGCONT")
    await player.reach("after 3 s")
    for (const p of [player, host]) assert.match(p.kinds, /^(reconnecting reconnected)?$/)
  })

  it("relay stopped 15 s: reconnecting, reconnected, and the match goes on", async t => {
    const f = await Ferry.start(t), { player, host } = await match(t, f)
    const at = performance.now()
    f.process.kill("SIGSTOP")
    within(t, "reconnecting", (await player.waitFor("reconnecting")).at - at, 1000, 4500)
    await sleep(at + 15_000 - performance.now())
    f.process.kill("SIGCONT")
    within(t, "reconnected", (await player.waitFor("reconnected")).at - at, 15_000, 18_000)
    await player.reach("after 15 s")
    for (const p of [player, host]) assert.match(p.kinds, /^reconnecting reconnected$/)
  })

  it("relay killed and started again: reconnecting at once, reconnected, and the match goes on", async t => {
    const f = await Ferry.start(t, ...unhurried), { player, host } = await match(t, f)
    const at = performance.now()
    await f.kill()
    within(t, "reconnecting", (await player.waitFor("reconnecting")).at - at, 0, 100)
    await f.launch()
    await player.reach("after the restart")
    await host.waitFor("reconnected")
    for (const p of [player, host]) assert.equal(p.kinds, "reconnecting reconnected")
  })

  it("relay killed for good: reconnecting, and the end with a reason", async t => {
    const f = await Ferry.start(t, ...unhurried), { player } = await match(t, f, { player: { reconnectTimeout: 5000 } })
    const at = performance.now()
    await f.kill()
    const { at: ended, reason } = await player.waitFor("ended")
    within(t, "the end", ended - at, 5000, 6500)
    assert.equal(player.kinds, "reconnecting ended")
    assert.match(reason, /could not be reached for 5 s: the WebSocket was closed/)
    assert.equal((await player.connection.ended).reason, "lost")
  })

  it("flood: other players are served, memory is bounded", async t => {
    const f = await Ferry.start(t, ...unhurried), { player, host, api, code } = await match(t, f)
    const flooder = await open(t, await api.join(code))
    await flooder.connection.connect()
    let flooding = true
    t.after(() => { flooding = false })
    void (async () => {
      for (; flooding; await sleep(1)) for (let i = 0; i < 50; i++) flooder.say("flood")
    })()
    for (let i = 0; i < 10; i++) await player.reach("text " + i)
    flooding = false
    assert.equal(host.kinds + player.kinds, "")
    t.diagnostic(`the host has received ${host.heard.length} messages and dropped ${host.connection.dropped}`)
  })

  it("flood that is not read: the queue is bounded, and other players have a place in it", async t => {
    const f = await Ferry.start(t, ...unhurried), api = new Allocations(f.api, token), a = await api.allocate(4)
    const host = await Connection.open(a, { WebSocket, maxEvents: 10 }), code = await api.joinCode(a)
    t.after(() => host.close())
    const names = ["flooder", "player"], players = []
    for (const _ of names) {
      players.push(await open(t, await api.join(code)))
      await players.at(-1).connection.connect()
    }
    while (host.dropped < 5) { players[0].say("flood"); await sleep(5) }
    while (host.peers.size < 2) { players[1].say("here"); await sleep(50) }
    const waiting = []
    setTimeout(() => host.close(), 500)
    for await (const e of host) waiting.push(e)
    assert.equal(waiting.filter(e => e.peer === players[0].connection.id).length, 10)
    assert(waiting.some(e => e.peer === players[1].connection.id && e.type === "message"))
  })

  it("loss 20 %: nothing, and everything arrives", async t => {
    const f = await Ferry.start(t, ...unhurried), path = await Path.to(t, f)
    const { player, host } = await match(t, f, { player: { url: path.url } })
    path.lose = () => Math.random() < 0.2 ? 200 : 0 // the least time after which TCP sends again
    for (let i = 0; i < 20; i++) await player.reach("text " + i)
    assert.equal(player.kinds + host.kinds, "")
  })

  it("a peer is disconnected: the player is told, and the host hears nothing of it", async t => {
    const { player, host } = await match(t, await Ferry.start(t, ...unhurried))
    host.connection.disconnect(player.connection.id)
    assert.match((await player.waitFor("leave")).reason, /the peer has ended the link/)
    assert.equal(host.connection.peers.size, 0)
  })

  it("another copy of the game uses the same allocation: one of the two is told so, the other plays on", async t => {
    const f = await Ferry.start(t, ...unhurried), { player: first } = await match(t, f)
    const again = () => open(t, first.allocation, { nonce: first.connection.nonce + 1 })
    if (globalThis.navigator?.locks) {
      assert.equal((await failure(again)).reason, "in-use")
      return first.reach("more")
    }
    const second = await again()
    await second.connection.connect()
    const ended = await Promise.race([first, second].map(async p => { await p.connection.ended; return p }))
    const lives = ended === first ? second : first
    within(t, "ended", performance.now() - second.began, 3000, 25_000)
    assert.match(ended.events.at(-1).reason, /another session uses this allocation/)
    await lives.reach("more")
    await sleep(5000)
    assert.equal(lives.connection.connected, true)
  })
})

describe("features", { concurrency: 20, timeout: 240_000 }, () => {
  it("host migration: the match goes on under the same code", async t => {
    const f = await Ferry.start(t, ...unhurried, "--host-migration=60s"), { api, code, host, player } = await match(t, f)
    const other = await open(t, await api.join(code))
    await other.connection.connect()
    await other.reach("first of the other")
    await api.leave(host.allocation)
    host.connection.close()
    const next = async p => {
      for (;;) {
        const a = await migrate(api, code, p.allocation)
        try {
          const now = await open(t, a)
          p.connection.close()
          return now
        } catch (e) {
          if (e.reason !== "not-found") throw e
        }
      }
    }
    const [a, b] = await Promise.all([next(player), next(other)])
    const [newHost, joiner] = a.allocation.hostConnectionData ? [b, a] : [a, b]
    assert.equal(newHost.allocation.hostConnectionData, undefined)
    assert.equal(await joiner.connection.connect(), newHost.connection.id)
    await joiner.reach("at the new host")
    assert.equal((await failure(() => migrate(api, "6789BC", joiner.allocation))).reason, "match-over")
    assert.equal((await failure(() => migrate(api, code, newHost.allocation))).name, "TypeError")
    newHost.connection.close()
    assert.equal((await failure(() => migrate(api, code, joiner.allocation, { signal: AbortSignal.abort() }))).name, "AbortError")
  })

  it("regions: each is measured, the nearest first", async t => {
    const f = await Ferry.start(t), regions = await new Allocations(f.api, token).regions()
    assert.equal(regions.length, 1)
    const dead = net.createServer().listen(0, "127.0.0.1")
    await once(dead, "listening")
    const { port } = dead.address()
    await new Promise(resolve => dead.close(resolve))
    const all = await measure([{ id: "none", description: "" }, { id: "dead", description: "", webSocketUrl: `ws://127.0.0.1:${port}/` }, ...regions])
    assert.equal(all[0].region, regions[0].id)
    assert(all[0].received === 5 && all[0].sent === 5 && all[0].rtt > 0 && all[0].loss === 0, JSON.stringify(all[0]))
    assert.deepEqual(all.slice(1).map(q => [q.rtt, q.loss]), [[undefined, 1], [undefined, 1]])
    assert.match(all.find(q => q.region === "dead").error, /ECONNREFUSED/)
  })

  it("an endpoint that ends the WebSocket, as a proxy of something else: the next one is used", async t => {
    const f = await Ferry.start(t, ...unhurried), a = await new Allocations(f.api, token).allocate(1)
    const server = new WebSocketServer({ host: "127.0.0.1", port: 0 })
    await once(server, "listening")
    t.after(() => server.close())
    server.on("connection", socket => socket.close())
    a.endpoints.unshift({ ...a.endpoints.find(e => e.connectionType === "ws"), port: server.address().port })
    assert.equal((await open(t, a)).connection.connected, true)
    a.endpoints.splice(1)
    assert.equal((await failure(() => open(t, a))).reason, "unreachable")
  })

  it("join codes: what people type around them is taken out; an unknown one is not found", async t => {
    const f = await Ferry.start(t, ...unhurried), { api, code } = await match(t, f)
    await api.join(` ${code.slice(0, 3).toLowerCase()}\u2013${code.slice(3)}\u200b\u00a0`)
    for (const wrong of ["6789BC", "O0O0O0", "not a code"]) {
      const e = await failure(() => api.join(wrong))
      assert(e instanceof ApiError && e.status === 404 && e.code === 15009 && /join code not found/.test(e.message), `${wrong}: ${e.message}`)
    }
  })

  it("content that a player on WebSocket does not get is refused, and the largest arrives", async t => {
    const { player } = await match(t, await Ferry.start(t, ...unhurried))
    const e = await failure(() => player.connection.send(new Uint8Array(1349)))
    assert(e instanceof RangeError && /1349 bytes, at most 1348/.test(e.message), e.message)
    await player.reach("x".repeat(1348))
  })

  it("no WebSocket, and a server that is dead: a RelayError in words", async t => {
    const f = await Ferry.start(t, ...unhurried), api = new Allocations(f.api, token)
    if (globalThis.WebSocket === undefined) {
      const e = await failure(async () => Connection.open(await api.allocate(1)))
      assert(e instanceof RelayError && e.reason === "no-websocket" && /option WebSocket/.test(e.message), e.message)
    } else await (await open(t, await api.allocate(1), { WebSocket: undefined })).connection.close()
    const a = await api.allocate(1)
    await f.kill()
    const e = await failure(() => open(t, a))
    assert(e instanceof RelayError && e.reason === "unreachable" && /no WebSocket to ws:.* opens: .*ECONNREFUSED/.test(e.message), e.message)
    const call = await failure(() => api.allocate(1))
    assert(call instanceof ApiError && call.status === 0 && /ECONNREFUSED/.test(call.message), call.message)
  })
})

/** Calls f and returns what it throws. */
async function failure(f) {
  try {
    await f()
  } catch (e) {
    return e
  }
  throw new assert.AssertionError({ message: "it did not fail" })
}
