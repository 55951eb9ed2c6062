import { type Region, describe } from "./allocations.ts"

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
  /** Why the last probe without an answer has none. */
  error?: string
}

export interface MeasureOptions {
  /** How many probes are sent to each region. Default 5. */
  probes?: number
  /** How long a probe waits for its answer, and the connection before the first. Default 2000. */
  timeout?: number
}

/**
 * Measures the round trip to regions, all at once, and returns them with the nearest first; those that do not answer come
 * last. A probe is a GET of the relay that the region names, over a connection that the first one, which does not count,
 * has opened. It needs no allocation.
 */
export async function measure(regions: readonly Region[], options: MeasureOptions = {}): Promise<Quality[]> {
  const all = await Promise.all(regions.map(r => measureOne(r, options.probes ?? 5, options.timeout ?? 2000)))
  return all.sort((a, b) => a.rtt === b.rtt ? a.loss - b.loss : (a.rtt ?? Infinity) - (b.rtt ?? Infinity))
}

async function measureOne(region: Region, probes: number, timeout: number): Promise<Quality> {
  const q: Quality = { region: region.id, sent: 0, received: 0, rtt: undefined, loss: 1 }
  if (!region.webSocketUrl) return { ...q, error: "the region names no WebSocket" }
  const url = region.webSocketUrl.replace(/^ws/, "http")
  let sum = 0
  for (let i = 0; i <= probes; i++) {
    const sentAt = performance.now()
    if (i > 0) q.sent++
    try {
      // A page may not read the answer, which tells it to open a WebSocket: it only has to come.
      const answer = await fetch(url, { mode: "no-cors", credentials: "omit", cache: "no-store", signal: AbortSignal.timeout(timeout) })
      await answer.arrayBuffer() // Otherwise Node opens another connection for the next one.
      if (i === 0) continue
      q.received++
      sum += performance.now() - sentAt
    } catch (e) {
      q.error = describe(e)
      if (i === 0) return q
    }
  }
  return { ...q, rtt: q.received ? sum / q.received : undefined, loss: q.sent ? 1 - q.received / q.sent : 1 }
}
