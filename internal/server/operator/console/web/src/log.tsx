import { useState } from "preact/hooks"
import { get, type Line } from "./api"
import { clock } from "./format"
import { usePoll } from "./live"
import { Failure, Table } from "./parts"

const levels = ["debug", "info", "warn", "error"]

/** AuditPage shows what operators did. */
export function AuditPage() {
  const { value, error } = usePoll("audit", 2000, () => get<Line[]>("/console/data/audit"))
  const rows = [...(value ?? [])].reverse()
  return <>
    <Failure error={error} />
    {value && <p class="soft" role="status">{rows.length === 0 ? "No operator has changed anything since the start." : `The last ${rows.length} changes since the start, the newest first. The setting audit_file keeps all of them.`}</p>}
    {rows.length > 0 && <Table label="Audit" head={<><th>Time</th><th>Call</th><th>Outcome, by whom and from where</th></>}>
      {rows.map((l, i) => <tr key={i}><td title={l.time}>{clock(l.time)}</td><td class="text"><code>{l.text}</code></td><td class="text">{l.attrs}</td></tr>)}
    </Table>}
  </>
}

export function LogPage() {
  const [filter, setFilter] = useState("")
  const [from, setFrom] = useState("debug")
  const { value, error } = usePoll("log", 2000, () => get<Line[]>("/console/data/log"))
  const rows = (value ?? []).filter(l => levels.indexOf(l.level) >= levels.indexOf(from) && (l.text + " " + (l.attrs ?? "")).toLowerCase().includes(filter.toLowerCase())).reverse()
  return <>
    <form class="search" role="search" onSubmit={e => e.preventDefault()}>
      <label for="f">Filter</label>
      <input id="f" type="search" placeholder="text; operator: shows what operators did" value={filter} onInput={e => setFilter(e.currentTarget.value)} />
      <label>From <select value={from} onChange={e => setFrom(e.currentTarget.value)}>{levels.map(l => <option key={l}>{l}</option>)}</select></label>
    </form>
    <Failure error={error} />
    {value && <p class="soft" role="status">{rows.length} of the last {value.length} lines, the newest first</p>}
    {rows.length > 0 && <Table label="Log" head={<><th>Time</th><th>Level</th><th>Line</th></>}>
      {rows.map((l, i) => <tr key={i} class={`level-${l.level}`}><td title={l.time}>{clock(l.time)}</td><td>{l.level}</td><td class="text">{l.text} <span class="soft">{l.attrs}</span></td></tr>)}
    </Table>}
  </>
}
