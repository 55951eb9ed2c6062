// Live values: one connection to the server, for all parts of the page.
import { useEffect, useState } from "preact/hooks"
import { checkSession } from "./api"
import type { Sample } from "./types"

export interface Live {
  samples: Sample[] // the oldest first
  state: "live" | "gone" | "full" // full: the server answers, and has no place for this window
  since: number // when it was last live, ms; 0: never
}

const keptSeconds = 300
const retryMillis = 2000
// silentMillis is after how long without a sample the connection is given up: a server that hangs
// does not close it.
const silentMillis = 6000

/** useLive returns the samples of the last five minutes, and whether there are new ones. */
export function useLive(active: boolean): Live {
  const [live, setLive] = useState<Live>({ samples: [], state: "gone", since: 0 })
  useEffect(() => {
    if (!active) return
    let source: EventSource | undefined
    let retry = 0
    let silent = 0
    let samples: Sample[] = []
    let pending = 0
    let since = 0
    const show = (state: Live["state"]) => {
      clearTimeout(pending) // Many samples come at once after the connection was made.
      pending = window.setTimeout(() => setLive({ samples: [...samples], state, since }), 20)
    }
    const lose = async () => {
      clearTimeout(silent)
      source?.close()
      show("gone")
      retry = window.setTimeout(open, retryMillis)
      if (await checkSession()) show("full")
    }
    const open = () => {
      source = new EventSource("/console/data/events")
      silent = window.setTimeout(lose, silentMillis)
      source.onmessage = e => {
        clearTimeout(silent)
        silent = window.setTimeout(lose, silentMillis)
        const s = JSON.parse(e.data) as Sample
        const last = samples[samples.length - 1]
        if (last && last.since !== s.since) samples = [] // The process was restarted.
        else if (last && Date.parse(last.at) >= Date.parse(s.at)) return // The server repeats what it has kept.
        samples.push(s)
        samples = samples.slice(older(samples, keptSeconds))
        since = Date.now()
        show("live")
      }
      source.onerror = () => void lose()
    }
    open()
    return () => {
      source?.close()
      clearTimeout(retry)
      clearTimeout(silent)
      clearTimeout(pending)
    }
  }, [active])
  return live
}

/** usePoll calls a function now, after each change of key, and every so many milliseconds. */
export function usePoll<T>(key: string, everyMillis: number, f: () => Promise<T>): { value?: T; error?: Error; again: () => void } {
  const [state, setState] = useState<{ key: string; value?: T; error?: Error }>({ key })
  const [asked, again] = useState(0)
  useEffect(() => {
    let ended = false
    let timer = 0
    const run = async () => {
      try {
        const value = await f()
        if (!ended) setState({ key, value })
      } catch (error) {
        if (!ended) setState(s => ({ key, value: s.key === key ? s.value : undefined, error: error as Error }))
      }
      if (!ended) timer = window.setTimeout(run, everyMillis)
    }
    void run()
    return () => { ended = true; clearTimeout(timer) }
  }, [key, everyMillis, asked])
  return { value: state.key === key ? state.value : undefined, error: state.error, again: () => again(n => n + 1) }
}

/** rates returns the change per second of a counter, between each two samples. */
export function rates(samples: Sample[], counter: (s: Sample) => number): (number | null)[] {
  return samples.map((s, i) => {
    const before = samples[i - 1]
    if (!before) return null
    const seconds = (Date.parse(s.at) - Date.parse(before.at)) / 1000
    return seconds > 0 ? Math.max(0, counter(s) - counter(before)) / seconds : null
  })
}

/** nowSeconds is over how many seconds a rate is taken that is shown as the present one. */
export const nowSeconds = 10

/** older is how many samples are that much older than the last one, which are seldom on time. */
export function older(samples: Sample[], seconds: number): number {
  const end = Date.parse(samples[samples.length - 1]?.at ?? "")
  return samples.filter(s => end - Date.parse(s.at) > seconds * 1000 - 500).length
}

/** rate is the change per second of a counter over the last seconds; null: there is only one sample. */
export function rate(samples: Sample[], seconds: number, counter: (s: Sample) => number): number | null {
  const last = samples[samples.length - 1]
  const before = samples[Math.max(0, older(samples, seconds) - 1)]
  if (!last || !before || last === before) return null
  return Math.max(0, counter(last) - counter(before)) / ((Date.parse(last.at) - Date.parse(before.at)) / 1000)
}
