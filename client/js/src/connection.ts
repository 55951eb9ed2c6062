import type { Allocation } from "./allocations.ts"
import { RelayError } from "./errors.ts"
import { inUse, lockAllocation } from "./lock.ts"
import { type Bytes, decode, encode, importKey, type Message, signBind } from "./messages.ts"
import { Meter, type Stats } from "./stats.ts"
import { type Dial, type Transport, webSocketDial, type WebSocketConstructor } from "./transport.ts"

/** Times are in milliseconds. */
export interface ConnectionOptions {
  /** The URL of the WebSocket. Default: the wss endpoints of the allocation, or else its ws endpoints, in turn. */
  url?: string
  /** The constructor of WebSockets. Default: the runtime's own. Node has one from 22 on. */
  WebSocket?: WebSocketConstructor
  /** The nonce of the first BIND. Default 0. After another connection with the same allocation, a greater one than its nonce. */
  nonce?: number
  /** The time between PINGs. After three without a message of the relay the connection opens again. Default 1000. */
  pingPeriod?: number
  /** The time between repetitions of an unanswered request, and until the next endpoint is tried as well. Default 1000. */
  retryPeriod?: number
  /** How long open waits for the WebSocket and the answer to BIND. Default 10,000. */
  bindTimeout?: number
  /** How long connect asks. Default 60,000. */
  connectTimeout?: number
  /** How long a connection that was lost tries to open again. 0: not at all. Default 60,000. */
  reconnectTimeout?: number
  /** The most bytes that one send takes, at most 1434. Default 1348, which the relay sends to players on WebSocket. */
  maxContent?: number
  /** How many events of one peer may wait to be read before its messages are dropped. Default 256. */
  maxEvents?: number
  /** How many bytes may wait to be sent before messages are dropped. Default 262,144. */
  maxBuffered?: number
}

/** What happens on a connection. A host learns of a peer by its first message; a joiner's only peer is its host. */
export type ConnectionEvent =
  | { type: "join"; peer: string }
  | { type: "message"; peer: string; content: Bytes }
  /** The link to a peer has ended, and why in words. */
  | { type: "leave"; peer: string; reason: string }
  /** The relay is silent or the WebSocket has ended, and the connection opens again by itself. Links and peers stay. */
  | { type: "reconnecting"; reason: string }
  | { type: "reconnected" }

const defaults = {
  nonce: 0, pingPeriod: 1000, retryPeriod: 1000, bindTimeout: 10_000, connectTimeout: 60_000, reconnectTimeout: 60_000,
  maxContent: 1348, maxEvents: 256, maxBuffered: 1 << 18,
}

/** How many PINGs in a row may stay without any message of the relay. */
const MAX_UNANSWERED = 3

/** How often a DISCONNECT is sent without the relay's echo. */
const MAX_DISCONNECTS = 4

/** How long a transport may take to open, and, once the connection was bound, to carry the answer to a BIND. */
const ATTEMPT_TIMEOUT = 5000

/** How long a link that the relay does not know any more may stay without an answer to CONNECT_REQUEST. */
const RELINK_TIMEOUT = 5000

/** Within how long after ERROR 4 about the host the relay ends the WebSocket. */
const AFTER_HOST = 2000

/** How many BINDs have the same nonce after ERROR 3. */
const SENDS_PER_NONCE = 4

/** How often within a time the relay may say that an open WebSocket is not bound any more. */
const MAX_LOSSES = 3, LOSSES_WITHIN = 30_000

/** A transport that is being opened. */
interface Attempt { url: string; since: number; transport: Transport }

/**
 * An allocation bound to a relay. Messages are datagrams: they may be lost on the way to a peer over UDP, and are dropped
 * if a queue is full. Iterate over the connection for its events. The iteration ends after close; any other end is thrown.
 *
 * A connection that was lost opens again by itself, with the same allocation and a greater nonce.
 */
export class Connection implements AsyncIterable<ConnectionEvent> {
  /** The own allocation. */
  readonly id: string
  /** Resolves with the reason when the connection has ended. */
  readonly ended: Promise<RelayError>

  readonly #allocation: Allocation
  readonly #options: typeof defaults
  readonly #key: CryptoKey
  readonly #dial: Dial
  readonly #urls: string[]
  readonly #timer: ReturnType<typeof setInterval>
  readonly #meter = new Meter()
  readonly #peers = new Set<string>()
  readonly #leaving = new Map<string, number>() // how often DISCONNECT was sent; it has not come back
  readonly #events: ConnectionEvent[] = []
  readonly #unread = new Map<string, number>() // events by peer
  #waiting: (() => void)[] = [] // iterators

  readonly #attempts = new Set<Attempt>()
  #dialled = 0 // transports since the connection was last bound
  #transport: Transport | undefined // the first that has opened
  #askedSince = 0 // BINDs have no answer on this transport
  #wasOpen = false // a transport has opened at some time
  #wasBound = false
  #lostBy = "" // why the connection opens again
  #reconnecting = false // the game was told so
  #hostEndedAt = -Infinity // ERROR 4 has answered a CONNECT_REQUEST
  #losses: number[] = [] // when ERROR 3 came to a bound connection
  #contested = false // it has come to this transport, and no BIND was answered since
  #repeats = 0 // of BIND since then

  #nonce: number
  #bind: Request<void>
  #bindSentAt = 0
  #connect: Request<string> | undefined
  #connectSentAt = -Infinity
  #lastPing = 0
  #unanswered = 0 // PINGs since the last message
  #error: RelayError | undefined
  #resolveEnded!: (reason: RelayError) => void

  /** Opens a WebSocket, binds the allocation and waits until the relay has confirmed it. Throws a RelayError. */
  static async open(allocation: Allocation, options: ConnectionOptions = {}): Promise<Connection> {
    const dial = webSocketDial(options.WebSocket)
    const key = await importKey(allocation.key), unlock = await lockAllocation(allocation.id)
    try {
      const c = new Connection(allocation, options, dial, key)
      void c.ended.then(unlock)
      await c.#bind.answer
      return c
    } catch (e) {
      unlock()
      throw e
    }
  }

  private constructor(allocation: Allocation, options: ConnectionOptions, dial: Dial, key: CryptoKey) {
    this.id = allocation.id
    this.ended = new Promise(resolve => { this.#resolveEnded = resolve })
    this.#allocation = allocation
    this.#options = { ...defaults, ...options }
    this.#nonce = this.#options.nonce
    this.#key = key
    this.#dial = dial
    this.#urls = options.url === undefined ? webSocketURLs(allocation) : [options.url]
    this.#bind = this.#startBind()
    this.#timer = setInterval(() => this.#keepAlive(), this.#options.pingPeriod)
  }

  /** The peers: those that a host has heard and that have not left, or the host of a joiner once connect has succeeded. */
  get peers(): ReadonlySet<string> { return this.#peers }

  /** The nonce of the newest BIND. */
  get nonce(): number { return this.#nonce }

  /** Whether the relay has confirmed the present path. While the connection opens again it has not, and send drops. */
  get connected(): boolean { return !this.#error && !this.#bind.pending }

  /** How many received messages were dropped because too many events waited. */
  get dropped(): number { return this.#meter.counters.dropped }

  /** Returns what was counted since open, and the present round trip and loss of PINGs. */
  stats(): Stats { return this.#meter.stats() }

  /** Asks for the link to the joiner's host, and returns the host's id. A link that the relay drops is made again without a call. */
  connect(): Promise<string> {
    const [host] = this.#peers
    if (this.#error) return Promise.reject(this.#error)
    if (this.#allocation.hostConnectionData === undefined) return Promise.reject(new TypeError("a host has nothing to connect to"))
    if (this.#connect?.pending) return this.#connect.answer
    if (host !== undefined) return Promise.resolve(host)
    return (this.#connect = this.#startConnect(this.#options.connectTimeout)).answer
  }

  /**
   * Sends content, the bytes of a buffer or of a view of one, to a peer; a joiner need not name its host. Returns false if it
   * was dropped, because too much waits to be sent, the connection or its link is being opened again, or it has ended.
   */
  send(content: ArrayBuffer | ArrayBufferView, to?: string): boolean {
    const bytes = copyOf(content)
    if (this.#error) return false
    const joiner = this.#allocation.hostConnectionData !== undefined
    const peer = to ?? (joiner ? [...this.#peers][0] : undefined)
    if (peer === undefined || !this.#peers.has(peer)) throw new RelayError("not-connected", "there is no link to that peer")
    if (bytes.length > this.#options.maxContent) {
      throw new RangeError(`${bytes.length} bytes, at most ${this.#options.maxContent}: the relay does not send more than 1348 to a player on WebSocket`)
    }
    if (!this.connected || joiner && this.#connect?.pending || this.#transport!.buffered > this.#options.maxBuffered) {
      this.#meter.counters.unsent++
      return false
    }
    this.#meter.counters.sent++
    this.#meter.counters.sentBytes += bytes.length
    this.#transmit({ type: "RELAY", from: this.id, to: peer, content: bytes })
    return true
  }

  /** Ends the link to a peer. No event follows. */
  disconnect(peer: string): void {
    if (!this.#peers.delete(peer)) return
    this.#leaving.set(peer, 0)
    this.#sendDisconnect(peer)
  }

  /** Ends every link and the allocation. A host's match ends with it. */
  close(): void {
    for (const peer of this.#peers) this.disconnect(peer)
    this.#transmit({ type: "CLOSE", id: this.id })
    this.#end(new RelayError("closed", "the connection was closed"))
  }

  async *[Symbol.asyncIterator](): AsyncIterator<ConnectionEvent> {
    for (;;) {
      const event = this.#events.shift()
      if (event) {
        if ("peer" in event) this.#countUnread(event.peer, -1)
        yield event
      } else if (this.#error?.reason === "closed") return
      else if (this.#error) throw this.#error
      else await new Promise<void>(resolve => this.#waiting.push(resolve))
    }
  }

  /** Opens another transport, to the next endpoint to which none is being opened. */
  #dialNext(): void {
    const now = performance.now()
    for (const a of this.#attempts) {
      if (now - a.since < ATTEMPT_TIMEOUT) continue
      this.#attempts.delete(a)
      a.transport.close()
    }
    const busy = new Set([...this.#attempts].map(a => a.url))
    const turns = this.#urls.map((_, i) => this.#urls[(this.#dialled + i) % this.#urls.length]!)
    const url = turns.find(u => !busy.has(u))
    if (url === undefined) return
    this.#dialled++
    const attempt: Partial<Attempt> & { url: string; since: number } = { url, since: now }
    try {
      attempt.transport = this.#dial(url, {
        opened: () => this.#onOpened(attempt as Attempt),
        received: packet => { if (this.#transport === attempt.transport) this.#receive(packet) },
        closed: why => this.#onClosed(attempt as Attempt, why),
      })
      this.#attempts.add(attempt as Attempt)
    } catch (e) { // A page of https may not open ws, for example.
      const why = `no WebSocket to ${url} opens: ${e instanceof Error ? e.message : String(e)}`
      queueMicrotask(() => this.#onClosed(attempt as Attempt, why))
    }
  }

  #onOpened(a: Attempt): void {
    this.#attempts.delete(a)
    if (this.#transport || !this.#bind.pending) return a.transport.close()
    for (const slower of this.#attempts) slower.transport.close()
    this.#attempts.clear()
    if (this.#wasOpen && !this.#raiseNonce()) return
    this.#wasOpen = true
    this.#transport = a.transport
    this.#askedSince = performance.now()
    void this.#sendBind()
  }

  #onClosed(a: Attempt, why: string): void {
    if (this.#error) return
    this.#attempts.delete(a)
    if (this.#transport !== undefined && this.#transport === a.transport) return this.#lose(why)
    if (this.#transport || !this.#bind.pending) return
    if (this.#dialled < this.#urls.length) return this.#dialNext()
    if (!this.#wasBound && !this.#attempts.size) this.#end(new RelayError("unreachable", why))
  }

  /** Gives the present transport up, and opens the connection again. */
  #lose(why: string): void {
    this.#transport?.close()
    this.#transport = undefined
    this.#contested = false
    if (!this.#wasBound) return this.#dialled < this.#urls.length ? this.#dialNext() : this.#end(new RelayError("unreachable", why))
    if (this.#options.reconnectTimeout <= 0) return this.#end(new RelayError("lost", why))
    this.#lostBy = why
    // The relay ends the WebSocket after ERROR 4, even if that is about the host: the game has been told so.
    if (!this.#reconnecting && performance.now() - this.#hostEndedAt > AFTER_HOST) {
      this.#reconnecting = true
      this.#emit({ type: "reconnecting", reason: why })
    }
    if (!this.#bind.pending) this.#bind = this.#startBind()
  }

  #startBind(): Request<void> {
    this.#dialled = 0
    this.#askedSince = performance.now()
    const bind = new Request<void>(() => this.#tryBind(), this.#options.retryPeriod, this.#bindTimeout, () => this.#unbound())
    bind.answer.catch(e => this.#end(e as RelayError))
    return bind
  }

  /** How long the present BIND may wait for its answer. */
  get #bindTimeout(): number { return this.#wasBound && this.#options.reconnectTimeout || this.#options.bindTimeout }

  /** Returns why the connection is not bound in time. */
  #unbound(): RelayError {
    if (this.#wasBound) return new RelayError("lost", `the relay could not be reached for ${this.#bindTimeout / 1000} s: ${this.#lostBy || "it does not answer BIND"}`)
    return new RelayError("bind-timeout", this.#transport ? "the relay does not answer BIND" : "no WebSocket opens in time to " + this.#urls.join(" or "))
  }

  #tryBind(): void {
    if (this.#transport && this.#wasBound && performance.now() - this.#askedSince > ATTEMPT_TIMEOUT) this.#lose("the relay does not answer BIND")
    if (!this.#transport) return this.#dialNext()
    if (this.#contested && this.#repeats++ % SENDS_PER_NONCE === 0 && !this.#raiseNonce()) return
    void this.#sendBind()
  }

  async #sendBind(): Promise<void> {
    const transport = this.#transport
    const packet = await signBind(this.#key, this.#nonce, this.#allocation.connectionData)
    if (!this.#bind.pending || this.#transport !== transport) return
    this.#bindSentAt = performance.now()
    this.#meter.counters.binds++
    this.#transmit(packet)
  }

  #receive(packet: Bytes): void {
    const m = decode(packet)
    if (!m) {
      this.#meter.counters.malformed++
      return
    }
    this.#unanswered = 0
    // The timers of hidden pages run once a minute; messages arrive in time.
    if (performance.now() - this.#lastPing >= this.#options.pingPeriod) this.#ping()
    switch (m.type) {
      case "BIND_RECEIVED": return this.#onBound()
      case "PING": return m.id === this.id ? this.#meter.echo(m.number) : undefined
      case "REJECTED": return this.#connect?.reject(new RelayError("rejected", "the host is full"))
      case "ERROR": return m.id === this.id ? this.#onError(m.code) : undefined
      case "RELAY": return m.to === this.id ? this.#deliver(m.from, m.content) : undefined
      case "ACCEPTED": return m.to === this.id ? this.#onAccepted(m.from) : undefined
      case "DISCONNECT":
        if (m.from === this.id) this.#leaving.delete(m.to)
        else if (m.to === this.id) this.#leave(m.from, "the peer has ended the link")
    }
  }

  #onBound(): void {
    if (!this.#bind.pending) return
    this.#wasBound = true
    this.#contested = false
    this.#lostBy = ""
    this.#bind.resolve()
    if (!this.#reconnecting) return
    this.#reconnecting = false
    this.#meter.counters.reconnects++
    this.#emit({ type: "reconnected" })
  }

  #onAccepted(host: string): void {
    if (!this.#connect?.pending) return
    this.#peers.add(host)
    this.#connect.resolve(host)
  }

  #onError(code: number): void {
    this.#meter.error(code)
    switch (code) {
      case 1: return this.#end(new RelayError("idle-timeout", "the allocation has ended, since it was silent"))
      case 2: return this.#connect?.reject(new RelayError("unauthorized", "hostConnectionData is not for this player"))
      case 3: return this.#bindAgain()
      case 4:
        if (!this.#answersConnect()) return this.#end(new RelayError("not-found", "the allocation has ended"))
        this.#hostEndedAt = performance.now()
        return this.#connect?.reject(new RelayError("not-found", "the host has ended"))
      case 5: return this.#relink()
      case 6: return this.#connect?.reject(new RelayError("self-connect", "hostConnectionData is the player's own"))
    }
  }

  /** Whether ERROR 4 answers a CONNECT_REQUEST and so speaks of the host; the own allocation has ended if it answers a BIND. */
  #answersConnect(): boolean {
    return this.#connectSentAt > 0 && (!this.#bind.pending || this.#bindSentAt < this.#connectSentAt)
  }

  /**
   * This WebSocket is not bound to the allocation any more. No NAT does that, since the relay knows a WebSocket as long as it is
   * open, and a relay that restarts ends it: another session has bound, with a nonce that may be higher than the next one.
   */
  #bindAgain(): void {
    if (this.#bind.pending) return
    const now = performance.now()
    this.#losses = [...this.#losses.filter(at => now - at < LOSSES_WITHIN), now]
    if (this.#losses.length === MAX_LOSSES) return this.#end(inUse())
    this.#contested = true
    this.#repeats = 0
    this.#bind = this.#startBind()
  }

  #raiseNonce(): boolean {
    if (this.#nonce === 0xffff) this.#end(new RelayError("lost", "no greater nonce is left"))
    else this.#nonce++
    return !this.#error
  }

  /** The relay has no link for what a joiner sent: it asks for one again. A host has several peers, and the ERROR names none. */
  #relink(): void {
    const [host] = this.#peers
    if (host === undefined || this.#allocation.hostConnectionData === undefined || this.#connect?.pending) return
    this.#connect = this.#startConnect(RELINK_TIMEOUT, true)
    this.#connect.answer.catch((e: RelayError) => { if (!this.#error) this.#leave(host, e.message) })
  }

  #startConnect(timeout: number, relink = false): Request<string> {
    const { retryPeriod } = this.#options
    const send = () => {
      // A DISCONNECT that is repeated would end the new link.
      if (this.#bind.pending || this.#leaving.size) return
      const now = performance.now()
      if (relink && now - this.#connectSentAt < retryPeriod * 0.9) return
      this.#connectSentAt = now
      this.#meter.counters.connects++
      this.#transmit({ type: "CONNECT_REQUEST", id: this.id, connectionData: this.#allocation.hostConnectionData! })
    }
    const expired = () => relink && this.#bind.pending ? undefined // The relay's silence says nothing about the link.
      : new RelayError("connect-timeout", "the relay does not answer CONNECT_REQUEST: the host may not have bound yet")
    return new Request<string>(send, retryPeriod, timeout, expired)
  }

  #deliver(peer: string, content: Bytes): void {
    const known = this.#peers.has(peer)
    if (!known && (this.#allocation.hostConnectionData || this.#leaving.has(peer))) return
    if ((this.#unread.get(peer) ?? 0) >= this.#options.maxEvents) {
      this.#meter.counters.dropped++
      return
    }
    if (!known) {
      this.#peers.add(peer)
      this.#emit({ type: "join", peer })
    }
    this.#meter.counters.received++
    this.#meter.counters.receivedBytes += content.length
    this.#emit({ type: "message", peer, content })
  }

  #leave(peer: string, reason: string): void {
    this.#leaving.delete(peer)
    if (this.#peers.delete(peer)) this.#emit({ type: "leave", peer, reason })
  }

  #emit(event: ConnectionEvent): void {
    if ("peer" in event) this.#countUnread(event.peer, 1)
    this.#events.push(event)
    this.#wake()
  }

  #countUnread(peer: string, by: number): void {
    const n = (this.#unread.get(peer) ?? 0) + by
    if (n) this.#unread.set(peer, n)
    else this.#unread.delete(peer)
  }

  #wake(): void { for (const resolve of this.#waiting.splice(0)) resolve() }

  #keepAlive(): void {
    if (this.#bind.pending) return
    if (this.#unanswered >= MAX_UNANSWERED) return this.#lose("the relay has answered none of three PINGs")
    for (const [peer, sent] of this.#leaving) {
      if (sent < MAX_DISCONNECTS) this.#sendDisconnect(peer)
      else this.#leaving.delete(peer)
    }
    this.#ping()
  }

  #sendDisconnect(peer: string): void {
    this.#leaving.set(peer, (this.#leaving.get(peer) ?? 0) + 1)
    this.#transmit({ type: "DISCONNECT", from: this.id, to: peer })
  }

  #ping(): void {
    if (this.#bind.pending) return
    this.#lastPing = performance.now()
    this.#unanswered++
    this.#transmit({ type: "PING", id: this.id, number: this.#meter.ping() })
  }

  #transmit(m: Message | Bytes): void { this.#transport?.send(m instanceof Uint8Array ? m : encode(m)) }

  #end(reason: RelayError): void {
    if (this.#error) return
    this.#error = reason
    clearInterval(this.#timer)
    this.#bind.reject(reason)
    this.#connect?.reject(reason)
    this.#transport?.close()
    for (const a of this.#attempts) a.transport.close()
    this.#resolveEnded(reason)
    this.#wake()
  }
}

/** A message that is sent now and once a period until there is an answer. */
class Request<T> {
  pending = true
  readonly answer: Promise<T>
  resolve!: (value: T) => void
  reject!: (reason: RelayError) => void

  /** expired returns the error after the timeout, or undefined to wait for that long again. */
  constructor(send: () => void, period: number, timeout: number, expired: () => RelayError | undefined) {
    const repeat = setInterval(send, period)
    const expire = () => {
      const error = expired()
      if (error) this.reject(error)
      else limit = setTimeout(expire, timeout)
    }
    let limit = setTimeout(expire, timeout)
    const stop = () => {
      this.pending = false
      clearInterval(repeat)
      clearTimeout(limit)
    }
    this.answer = new Promise((resolve, reject) => {
      this.resolve = value => { stop(); resolve(value) }
      this.reject = reason => { stop(); reject(reason) }
    })
    send()
  }
}

function copyOf(content: ArrayBuffer | ArrayBufferView): Bytes {
  if (content instanceof ArrayBuffer) return new Uint8Array(content.slice(0))
  if (!ArrayBuffer.isView(content)) throw new TypeError("send takes an ArrayBuffer or a view of one, such as a Uint8Array; TextEncoder makes one of a text")
  return new Uint8Array(content.buffer, content.byteOffset, content.byteLength).slice()
}

function webSocketURLs(a: Allocation): string[] {
  for (const kind of ["wss", "ws"]) {
    const all = a.endpoints.filter(e => e.connectionType === kind)
    if (all.length) return all.map(e => `${kind}://${e.host.includes(":") ? `[${e.host}]` : e.host}:${e.port}/`)
  }
  throw new TypeError("the relay offers no WebSocket")
}
