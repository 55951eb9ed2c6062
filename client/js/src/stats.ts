/** What a connection has counted since open. Bytes are those of contents. Times are in milliseconds. */
export interface Stats {
  sent: number
  sentBytes: number
  /** send returned false. */
  unsent: number
  received: number
  receivedBytes: number
  /** Received, but too many events waited. */
  dropped: number
  /** Packets of the relay that are no message of the protocol. */
  malformed: number
  /** BINDs and CONNECT_REQUESTs that were sent, with repetitions. */
  binds: number
  connects: number
  /** How often the connection was lost and opened again. */
  reconnects: number
  pings: number
  echoes: number
  /** ERRORs of the relay by code, 0 to 6. */
  errors: number[]
  /** The smoothed round trip to the relay, and the newest; undefined before the first. */
  rtt: number | undefined
  lastRTT: number | undefined
  /** The share of the last 50 PINGs without an echo, from 0 to 1. Over TCP it is the relay's silence rather than the network's loss. */
  loss: number
}

/** How many PINGs loss is about, and after how long one counts as lost. */
const RECENT = 50, LATE = 2000

/** Counts, and measures PINGs. */
export class Meter {
  readonly counters = { sent: 0, sentBytes: 0, unsent: 0, received: 0, receivedBytes: 0, dropped: 0, malformed: 0, binds: 0, connects: 0, reconnects: 0, pings: 0, echoes: 0 }
  readonly #errors = [0, 0, 0, 0, 0, 0, 0]
  readonly #recent: { number: number; at: number; echoed: boolean }[] = []
  #rtt: number | undefined
  #lastRTT: number | undefined

  /** Returns the number of a PING that is sent now. */
  ping(): number {
    const number = ++this.counters.pings & 0xffff
    this.#recent.push({ number, at: performance.now(), echoed: false })
    if (this.#recent.length > RECENT) this.#recent.shift()
    return number
  }

  echo(number: number): void {
    const ping = this.#recent.find(p => p.number === number && !p.echoed)
    if (!ping) return
    ping.echoed = true
    this.counters.echoes++
    this.#lastRTT = performance.now() - ping.at
    this.#rtt = this.#rtt === undefined ? this.#lastRTT : this.#rtt + (this.#lastRTT - this.#rtt) / 8 // as RFC 6298
  }

  error(code: number): void { if (code < this.#errors.length) this.#errors[code]!++ }

  stats(): Stats {
    const settled = this.#recent.filter(p => p.echoed || performance.now() - p.at > LATE)
    const lost = settled.filter(p => !p.echoed).length
    return { ...this.counters, errors: [...this.#errors], rtt: this.#rtt, lastRTT: this.#lastRTT, loss: settled.length ? lost / settled.length : 0 }
  }
}
