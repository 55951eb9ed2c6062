import type { Region } from "./allocations.ts"
import { decode, encode, ID_SIZE, idText } from "./messages.ts"
import { type Transport, webSocketDial, type WebSocketConstructor } from "./transport.ts"

/** How well a region can be reached. Times are in milliseconds. */
export interface Quality {
  region: string
  /** How many probes were sent and answered. */
  sent: number
  received: number
  /** The mean round trip of those that were answered, if any was. */
  rtt: number | undefined
  /** The share of probes without an answer, from 0 to 1. */
  loss: number
  /** Why nothing was measured. */
  error?: string
}

export interface MeasureOptions {
  /** How many probes are sent to each region, 1 to 3, which is the default: a relay answers no more of a client without an allocation. */
  probes?: number
  /** How long a WebSocket may take to open, and how long a probe waits for its answer. Default 2000. */
  timeout?: number
  /** As in ConnectionOptions. */
  WebSocket?: WebSocketConstructor
}

/**
 * Measures the round trip to regions, all at once, and returns them with the nearest first; those that do not answer come
 * last. A probe is a PING over the region's WebSocket, which needs no allocation: the relay answers with ERROR 3.
 */
export async function measure(regions: readonly Region[], options: MeasureOptions = {}): Promise<Quality[]> {
  const all = await Promise.all(regions.map(r => measureOne(r, options)))
  return all.sort((a, b) => (a.rtt ?? Infinity) - (b.rtt ?? Infinity) || a.loss - b.loss || 0)
}

async function measureOne(region: Region, options: MeasureOptions): Promise<Quality> {
  const timeout = options.timeout ?? 2000, probes = Math.min(Math.max(options.probes ?? 3, 1), 3)
  const q: Quality = { region: region.id, sent: 0, received: 0, rtt: undefined, loss: 1 }
  if (!region.webSocketUrl) return { ...q, error: "the region names no WebSocket" }
  let transport: Transport | undefined, ended = "", sum = 0
  let signal = () => {} // what is awaited has happened
  const next = () => new Promise<boolean>(resolve => {
    const timer = setTimeout(() => resolve(false), timeout)
    signal = () => {
      clearTimeout(timer)
      resolve(!ended)
    }
    if (ended) signal()
  })
  let probe = ""
  const opened = next()
  try {
    transport = webSocketDial(options.WebSocket)(region.webSocketUrl, {
      opened: () => signal(),
      closed: why => { ended = why; signal() },
      received: packet => {
        const m = decode(packet)
        if ((m?.type === "ERROR" || m?.type === "PING") && m.id === probe) signal()
      },
    })
    if (!await opened) return { ...q, error: ended || `no WebSocket to ${region.webSocketUrl} opens in ${timeout / 1000} s` }
    for (; q.sent < probes && !ended;) {
      probe = idText(crypto.getRandomValues(new Uint8Array(ID_SIZE)))
      const sentAt = performance.now(), answered = next()
      transport.send(encode({ type: "PING", id: probe, number: ++q.sent }))
      if (!await answered) continue
      q.received++
      sum += performance.now() - sentAt
    }
  } catch (e) {
    return { ...q, error: e instanceof Error ? e.message : String(e) }
  } finally {
    transport?.close()
  }
  return { ...q, rtt: q.received ? sum / q.received : undefined, loss: 1 - q.received / q.sent, ...q.received ? {} : { error: ended || "the relay answers no probe" } }
}
