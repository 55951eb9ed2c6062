// Live values: one connection to the server, for all parts of the page.
import { useEffect, useState } from "preact/hooks"
import { checkSession, type Sample } from "./api"

export interface Live {
  samples: Sample[] // the oldest first
  connected: boolean
}

const kept = 300
const retryMillis = 2000

/** useLive returns the samples of the last five minutes, and whether there are new ones. */
export function useLive(active: boolean): Live {
  const [live, setLive] = useState<Live>({ samples: [], connected: false })
  useEffect(() => {
    if (!active) return
    let source: EventSource | undefined
    let retry = 0
    let samples: Sample[] = []
    let pending = 0
    const show = (connected: boolean) => {
      clearTimeout(pending) // Many samples come at once after the connection was made.
      pending = window.setTimeout(() => setLive({ samples: [...samples], connected }), 20)
    }
    const open = () => {
      source = new EventSource("/console/data/events")
      source.onmessage = e => {
        const s = JSON.parse(e.data) as Sample
        const last = samples[samples.length - 1]
        if (last && last.since !== s.since) samples = [] // The process was restarted.
        else if (last && Date.parse(last.at) >= Date.parse(s.at)) return // The server repeats what it has kept.
        samples.push(s)
        if (samples.length > kept) samples.shift()
        show(true)
      }
      source.onerror = () => {
        show(false)
        source?.close()
        void checkSession()
        retry = window.setTimeout(open, retryMillis)
      }
    }
    open()
    return () => {
      source?.close()
      clearTimeout(retry)
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

/** rate is the change per second of a counter over the last samples. */
export function rate(samples: Sample[], over: number, counter: (s: Sample) => number): number {
  const last = samples[samples.length - 1]
  const before = samples[Math.max(0, samples.length - 1 - over)]
  if (!last || !before || last === before) return 0
  return Math.max(0, counter(last) - counter(before)) / ((Date.parse(last.at) - Date.parse(before.at)) / 1000)
}
