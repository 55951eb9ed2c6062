import type { Allocation } from "./allocations.ts"
import { type Bytes, decode, encode, importKey, type Message, signBind } from "./messages.ts"

/** Why a connection ended, or why connect or send failed. */
export type Reason =
  | "closed" // close was called
  | "lost" // the WebSocket ended, or the relay is silent
  | "bind-timeout" // the relay does not answer BIND
  | "connect-timeout" // the relay does not answer CONNECT_REQUEST: the host has not bound yet, for example
  | "rejected" // the host has all the players it may have
  | "unauthorized" // ERROR 2: hostConnectionData is not for this player
  | "self-connect" // ERROR 6: hostConnectionData is the player's own
  | "idle-timeout" // ERROR 1: the relay ended the allocation, which was silent
  | "not-found" // ERROR 4: the allocation or its host has ended
  | "not-connected" // there is no link to a peer

export class RelayError extends Error {
  override readonly name = "RelayError"
  readonly reason: Reason

  constructor(reason: Reason, detail = reason.replace("-", " ")) {
    super("relay: " + detail)
    this.reason = reason
  }
}

/** Times are in milliseconds. */
export interface ConnectionOptions {
  /** The URL of the WebSocket. Default: the wss endpoints of the allocation, or else its ws endpoints, in turn. */
  url?: string
  /** The nonce of the first BIND. Default 0. After a lost connection, another one with the same allocation needs a greater nonce. */
  nonce?: number
  /** The time between PINGs. After ten without a message of the relay the connection is lost. Default 1000. */
  pingPeriod?: number
  /** The time between repetitions of an unanswered request, and until the next endpoint is tried as well. Default 1000. */
  retryPeriod?: number
  /** How long to wait for the WebSocket and the answer to BIND. Default 10,000. */
  bindTimeout?: number
  /** How long connect asks. Default 60,000. */
  connectTimeout?: number
  /** The most bytes that one send takes. Default 1400, which is the relay's; at most 1434. */
  maxContent?: number
  /** How many events may wait to be read before messages are dropped. Default 1024. */
  maxEvents?: number
  /** How many bytes may wait to be sent before messages are dropped. Default 262,144. */
  maxBuffered?: number
}

/** What happens on a connection. A host learns of a peer by its first message; a joiner's only peer is its host. */
export type ConnectionEvent =
  | { type: "join"; peer: string }
  | { type: "message"; peer: string; content: Bytes }
  | { type: "leave"; peer: string }

const defaults = {
  nonce: 0, pingPeriod: 1000, retryPeriod: 1000, bindTimeout: 10_000, connectTimeout: 60_000, maxContent: 1400, maxEvents: 1024, maxBuffered: 1 << 18,
}

/** How many PINGs in a row may stay without any message of the relay. */
const MAX_UNANSWERED = 10

/**
 * An allocation bound to a relay over a WebSocket. Messages are datagrams: they may be lost on the way to a peer over
 * UDP, and are dropped if a queue is full. Iterate over the connection for its events. The iteration ends after close;
 * any other end is thrown.
 */
export class Connection implements AsyncIterable<ConnectionEvent> {
  /** The own allocation. */
  readonly id: string
  /** Resolves with the reason when the connection has ended. */
  readonly ended: Promise<RelayError>
  /** How many received messages were dropped because maxEvents waited. */
  dropped = 0

  readonly #allocation: Allocation
  readonly #options: typeof defaults
  readonly #key: CryptoKey
  readonly #timer: ReturnType<typeof setInterval>
  readonly #peers = new Set<string>()
  readonly #leaving = new Set<string>() // DISCONNECT was sent and has not come back
  readonly #events: ConnectionEvent[] = []
  #waiting: (() => void)[] = [] // iterators
  readonly #opening = new Set<WebSocket>()
  #socket: WebSocket | undefined // the first that has opened
  #nonce: number
  #bind: Request<void>
  #connect: Request<string> | undefined
  #lastPing = 0
  #pings = 0
  #unanswered = 0 // PINGs since the last message
  #error: RelayError | undefined
  #resolveEnded!: (reason: RelayError) => void

  /** Opens the WebSocket, binds the allocation and waits until the relay has confirmed it. Throws a RelayError. */
  static async open(allocation: Allocation, options: ConnectionOptions = {}): Promise<Connection> {
    const c = new Connection(allocation, options, await importKey(allocation.key))
    await c.#bind.answer
    return c
  }

  private constructor(allocation: Allocation, options: ConnectionOptions, key: CryptoKey) {
    this.id = allocation.id
    this.ended = new Promise(resolve => { this.#resolveEnded = resolve })
    this.#allocation = allocation
    this.#options = { ...defaults, ...options }
    this.#nonce = this.#options.nonce
    this.#key = key
    this.#bind = this.#startBind()
    this.#open(options.url === undefined ? webSocketURLs(allocation) : [options.url])
    this.#timer = setInterval(() => this.#keepAlive(), this.#options.pingPeriod)
  }

  /** The peers: those that a host has heard and that have not left, or the host of a joiner once connect has succeeded. */
  get peers(): ReadonlySet<string> { return this.#peers }

  /** The nonce of the newest BIND. */
  get nonce(): number { return this.#nonce }

  /** Asks for the link to the joiner's host, and returns the host's id. The relay ends a link on which nothing is sent for 10 s. */
  connect(): Promise<string> {
    const [host] = this.#peers, data = this.#allocation.hostConnectionData
    if (this.#error) return Promise.reject(this.#error)
    if (data === undefined) return Promise.reject(new TypeError("a host has nothing to connect to"))
    if (host !== undefined) return Promise.resolve(host)
    if (!this.#connect?.pending) {
      const { retryPeriod, connectTimeout } = this.#options
      this.#connect = new Request<string>(() => {
        // A DISCONNECT that is repeated would end the new link.
        if (!this.#leaving.size) this.#transmit({ type: "CONNECT_REQUEST", id: this.id, connectionData: data })
      }, retryPeriod, connectTimeout, new RelayError("connect-timeout"))
    }
    return this.#connect.answer
  }

  /** Sends content to a peer; a joiner need not name its host. Returns false if it was dropped, because too much waits to be sent. */
  send(content: Uint8Array, to?: string): boolean {
    if (this.#error) throw this.#error
    const peer = to ?? (this.#allocation.hostConnectionData && [...this.#peers][0])
    if (peer === undefined || !this.#peers.has(peer)) throw new RelayError("not-connected")
    if (content.length > this.#options.maxContent) throw new RangeError(`${content.length} bytes, at most ${this.#options.maxContent}`)
    if (this.#socket && this.#socket.bufferedAmount > this.#options.maxBuffered) return false
    this.#transmit({ type: "RELAY", from: this.id, to: peer, content: new Uint8Array(content) })
    return true
  }

  /** Ends the link to a peer. No event follows. */
  disconnect(peer: string): void {
    if (!this.#peers.delete(peer)) return
    this.#leaving.add(peer)
    this.#transmit({ type: "DISCONNECT", from: this.id, to: peer })
  }

  /** Ends every link and the allocation. A host's match ends with it. */
  close(): void {
    for (const peer of this.#peers) this.disconnect(peer)
    this.#transmit({ type: "CLOSE", id: this.id })
    this.#end(new RelayError("closed"))
  }

  async *[Symbol.asyncIterator](): AsyncIterator<ConnectionEvent> {
    for (;;) {
      const event = this.#events.shift()
      if (event) yield event
      else if (this.#error?.reason === "closed") return
      else if (this.#error) throw this.#error
      else await new Promise<void>(resolve => this.#waiting.push(resolve))
    }
  }

  /** Opens a WebSocket to the first of some endpoints, and to the next one if that fails or takes long. */
  #open(urls: string[]): void {
    const [url, ...others] = urls
    if (url === undefined) return
    const socket = new WebSocket(url)
    this.#opening.add(socket)
    const next = () => {
      clearTimeout(patience)
      if (!this.#socket && !this.#error) this.#open(others.splice(0))
    }
    const patience = setTimeout(next, this.#options.retryPeriod)
    socket.binaryType = "arraybuffer"
    socket.onopen = () => {
      clearTimeout(patience)
      this.#opening.delete(socket)
      if (this.#socket || this.#error) return socket.close(1000)
      this.#socket = socket
      for (const slower of this.#opening) slower.close()
      void this.#sendBind()
    }
    socket.onmessage = e => { if (e.data instanceof ArrayBuffer) this.#receive(new Uint8Array(e.data)) }
    socket.onclose = e => {
      this.#opening.delete(socket)
      next()
      if (this.#socket === socket || !this.#socket && !this.#opening.size) this.#end(new RelayError("lost", "the WebSocket was closed with " + e.code))
    }
  }

  #startBind(): Request<void> {
    const { retryPeriod, bindTimeout } = this.#options
    const bind = new Request<void>(() => void this.#sendBind(), retryPeriod, bindTimeout, new RelayError("bind-timeout"))
    bind.answer.catch(e => this.#end(e as RelayError))
    return bind
  }

  async #sendBind(): Promise<void> {
    const packet = await signBind(this.#key, this.#nonce, this.#allocation.connectionData)
    if (this.#bind.pending) this.#transmit(packet)
  }

  #receive(packet: Bytes): void {
    const m = decode(packet)
    if (!m) return
    this.#unanswered = 0
    // The timers of hidden pages run once a minute; messages arrive in time.
    if (performance.now() - this.#lastPing >= this.#options.pingPeriod) this.#ping()
    switch (m.type) {
      case "BIND_RECEIVED": return this.#bind.resolve()
      case "REJECTED": return this.#connect?.reject(new RelayError("rejected", "the host is full"))
      case "ERROR": return m.id === this.id ? this.#onError(m.code) : undefined
      case "RELAY": return m.to === this.id ? this.#deliver(m.from, m.content) : undefined
      case "ACCEPTED": return m.to === this.id ? this.#onAccepted(m.from) : undefined
      case "DISCONNECT":
        if (m.from === this.id) this.#leaving.delete(m.to)
        else if (m.to === this.id) this.#leave(m.from)
    }
  }

  #onAccepted(host: string): void {
    if (!this.#connect?.pending) return
    this.#peers.add(host)
    this.#connect.resolve(host)
  }

  #onError(code: number): void {
    switch (code) {
      case 1: return this.#end(new RelayError("idle-timeout", "the allocation has ended, since it was silent"))
      case 2: return this.#connect?.reject(new RelayError("unauthorized"))
      case 3: return this.#bindAgain()
      case 4: return this.#end(new RelayError("not-found", "the allocation or its host has ended"))
      case 5: if (this.#allocation.hostConnectionData) for (const host of this.#peers) this.#leave(host)
        return // A host has several peers, and the ERROR does not name one.
      case 6: return this.#connect?.reject(new RelayError("self-connect"))
    }
  }

  /** The relay does not know that this WebSocket is bound to the allocation. */
  #bindAgain(): void {
    if (this.#bind.pending) return
    if (this.#nonce === 0xffff) return this.#end(new RelayError("lost", "no greater nonce is left"))
    this.#nonce++
    this.#bind = this.#startBind()
  }

  #deliver(peer: string, content: Bytes): void {
    const known = this.#peers.has(peer)
    if (!known && (this.#allocation.hostConnectionData || this.#leaving.has(peer))) return
    if (this.#events.length >= this.#options.maxEvents) {
      this.dropped++
      return
    }
    if (!known) {
      this.#peers.add(peer)
      this.#emit({ type: "join", peer })
    }
    this.#emit({ type: "message", peer, content })
  }

  #leave(peer: string): void {
    this.#leaving.delete(peer)
    if (this.#peers.delete(peer)) this.#emit({ type: "leave", peer })
  }

  #emit(event: ConnectionEvent): void {
    this.#events.push(event)
    this.#wake()
  }

  #wake(): void { for (const resolve of this.#waiting.splice(0)) resolve() }

  #keepAlive(): void {
    if (this.#unanswered >= MAX_UNANSWERED) return this.#end(new RelayError("lost", "the relay is silent"))
    for (const to of this.#leaving) this.#transmit({ type: "DISCONNECT", from: this.id, to })
    this.#ping()
  }

  #ping(): void {
    if (this.#bind.pending) return
    this.#lastPing = performance.now()
    this.#unanswered++
    this.#transmit({ type: "PING", id: this.id, number: ++this.#pings & 0xffff })
  }

  #transmit(m: Message | Bytes): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(m instanceof Uint8Array ? m : encode(m))
  }

  #end(reason: RelayError): void {
    if (this.#error) return
    this.#error = reason
    clearInterval(this.#timer)
    this.#bind.reject(reason)
    this.#connect?.reject(reason)
    this.#socket?.close(1000)
    for (const socket of this.#opening) socket.close()
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

  constructor(send: () => void, period: number, timeout: number, expired: RelayError) {
    const repeat = setInterval(send, period)
    const limit = setTimeout(() => this.reject(expired), timeout)
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

function webSocketURLs(a: Allocation): string[] {
  for (const kind of ["wss", "ws"]) {
    const all = a.endpoints.filter(e => e.connectionType === kind)
    if (all.length) return all.map(e => `${kind}://${e.host.includes(":") ? `[${e.host}]` : e.host}:${e.port}/`)
  }
  throw new TypeError("the relay offers no WebSocket")
}
