// The question before a drain: what it does to which matches, and until when.
import { useState } from "preact/hooks"
import { call, get, onRelay } from "./api"
import type { DrainState, Matches, FleetNode as Node } from "./types"
import { age, counted, day } from "./format"
import { usePoll } from "./live"
import { Action, Failure } from "./parts"

const deadlines: [string, string][] = [["10m", "10 minutes"], ["30m", "30 minutes"], ["1h", "1 hour"], ["4h", "4 hours"], ["24h", "1 day"], ["0", "no deadline"]]

interface Running { total: string; none: boolean; oldest?: number; newest?: number }

async function load(id: string): Promise<Running> {
  const first = (order: string) => get<Matches>(onRelay(id, `/matches?sort=age&limit=1&order=${order}`))
  const [newest, oldest] = await Promise.all([first("asc"), first("desc")])
  return {
    total: (newest.truncated ? "at least " : "") + counted(newest.total, "match", "matches"),
    none: newest.total === 0, oldest: oldest.matches[0]?.host.age_seconds, newest: newest.matches[0]?.host.age_seconds,
  }
}

/** DrainButton asks for the deadline of a drain, and says what will happen. */
export function DrainButton({ node, done }: { node: Node; done: () => void }) {
  const chosen = { deadline: "1h" } // The dialog reads and writes it.
  const Ask = () => {
    const [deadline, setDeadline] = useState(chosen.deadline)
    const { value, error } = usePoll("drain " + node.id, 2000, () => load(node.id))
    const text = deadlines.find(([d]) => d === deadline)![1]
    return <>
      <h2>Drain <code>{node.id.slice(0, 8)}</code>{node.region && `, region ${node.region}`}</h2>
      <Failure error={error} />
      <p>{!value ? (error ? "How many matches run there is not known." : "Counting its matches…")
        : value.none ? "No match runs there."
          : `${value.total[0]!.toUpperCase()}${value.total.slice(1)} ${value.total === "1 match" ? "runs" : "run"} there; the oldest has run for ${age(value.oldest ?? 0)}, the last one began ${age(value.newest ?? 0)} ago.`}</p>
      <ul>
        <li>It takes no new matches from now on. Players can still join the running ones.</li>
        {value?.none ? <li><strong>Its process stops at once</strong>, since no match runs.</li>
          : <li>Its process stops when the last match has ended.</li>}
        {!value?.none && (deadline === "0" ? <li>Without a deadline it waits for the last match, however long that takes.</li>
          : <li><strong>After {text} it stops in any case, and ends the matches that still run.</strong></li>)}
        <li>A service manager may start a stopped process again. Until it stops, Undrain takes all of this back.</li>
      </ul>
      <p><label>Deadline <select value={deadline} onChange={e => { chosen.deadline = e.currentTarget.value; setDeadline(chosen.deadline) }}>
        {deadlines.map(([d, name]) => <option key={d} value={d}>{name}</option>)}
      </select></label></p>
    </>
  }
  return <Action label="Drain" danger ask={Ask} done={done} act={async () => {
    const s = await call<DrainState>("POST", `/nodes/${node.id}/drain?deadline=${chosen.deadline}`)
    return s.deadline ? `drains until ${day(s.deadline)} at the latest` : "drains without a deadline"
  }} />
}
