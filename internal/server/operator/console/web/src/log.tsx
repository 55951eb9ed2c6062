import { get } from "./api"
import type { Line } from "./types"
import { clock, exact } from "./format"
import { usePoll } from "./live"
import { Failure, Table } from "./parts"
import { setQuery } from "./route"

const levels = ["debug", "info", "warn", "error"]

// Changes in words, by call. The first that fits counts.
const changes: [RegExp, string][] = [
  [/^POST \/console\/login/, "signed in"], [/^DELETE \/console\/login/, "signed out"],
  [/^POST \/allocations\/([^/?]+)\/kick/, "removed player $1 from its match"],
  [/^POST \/allocations\/([^/?]+)\/capture/, "captured the messages of match $1"],
  [/^DELETE \/allocations\/([^/?]+)/, "ended allocation $1"],
  [/^POST \/bans\?/, "banned "], [/^DELETE \/bans\/([^/?]+)/, "ended ban $1"],
  [/^POST \/nodes\/([^/?]+)\/drain/, "began to drain relay $1"], [/^DELETE \/nodes\/([^/?]+)\/drain/, "ended the drain of relay $1"],
  [/^POST \/drain/, "began to drain this relay"], [/^DELETE \/drain/, "ended the drain of this relay"],
  [/^POST \/reload/, "reloaded the settings"], [/^POST \/upgrade/, "upgraded the program"],
  [/^PUT \/log-level\?level=(\w+)/, "set the log level to $1"], [/^PUT \/fast-path\?state=(\w+)/, "turned the fast path $1"],
  [/^PUT \/debug\/flight-recorder\?state=(\w+)/, "turned the flight recorder $1"], [/^\w+ \/debug\/([^?]+)/, "read $1"],
]

/** inWords is what a call did. */
function inWords(call: string): string {
  for (const [pattern, text] of changes) {
    const m = pattern.exec(call)
    if (!m) continue
    const values = new URLSearchParams(call.split("?")[1] ?? "")
    const words = text.replace("$1", decodeURIComponent(m[1] ?? ""))
    const length = values.get("for") && `for ${values.get("for")}`, deadline = values.get("deadline") && `with the deadline ${values.get("deadline")}`
    const subject = values.get("prefix") ?? (values.get("player") && `${values.get("player")} of ${values.get("project")}/${values.get("environment")}`)
    return (text === "banned " ? words + [subject, length, values.get("reason") && `(${values.get("reason")})`].filter(x => x).join(" ") : [words, deadline].filter(x => x).join(" "))
  }
  return call
}

const outcome = (status: string) => status.startsWith("2") ? "done" : status === "404" ? "not found" : status === "409" ? "refused: not possible now"
  : status === "400" || status === "422" ? "refused: a wrong value" : status === "503" ? "failed: no answer" : `failed (${status})`

const person = (by: string) => ({ token: "the admin token", loopback: "a program of this machine", session: "a sign-in by token" } as Record<string, string>)[by] ?? by.replace(/^session:?/, "sign-in ")

/** attrOf is an attribute of a line. */
const attrOf = (l: Line, name: string) => new RegExp(`(?:^| )${name}=(.*?)(?= \\w+=|$)`).exec(l.attrs ?? "")?.[1] ?? ""

/** AuditPage shows what operators did. */
export function AuditPage() {
  const { value, error } = usePoll("audit", 2000, () => get<Line[]>("/console/data/audit"))
  const rows = [...(value ?? [])].reverse()
  return <>
    <Failure error={error} />
    {value && <p class="soft" role="status">{rows.length === 0 ? "No operator has changed anything since the start." : `The last ${rows.length} changes since the start, the newest first. The setting audit_file keeps all of them.`}</p>}
    {rows.length > 0 && <Table label="Audit" head={<><th>Time</th><th>By</th><th>What</th><th>Outcome</th><th>From</th></>}>
      {rows.map(l => <tr key={l.time + l.text}><td>{exact(l.time)}</td><td>{person(attrOf(l, "by"))}</td>
        <td class="text" title={l.text}>{inWords(l.text)}</td><td>{outcome(attrOf(l, "status"))}</td><td>{attrOf(l, "from")}</td></tr>)}
    </Table>}
  </>
}


export function LogPage({ query }: { query: URLSearchParams }) {
  const filter = query.get("q") ?? "", from = query.get("from") ?? "debug"
  const { value, error } = usePoll("log", 2000, () => get<Line[]>("/console/data/log"))
  const rows = (value ?? []).filter(l => levels.indexOf(l.level) >= levels.indexOf(from) && (l.text + " " + (l.attrs ?? "")).toLowerCase().includes(filter.toLowerCase())).reverse()
  return <>
    <form class="search" role="search" onSubmit={e => e.preventDefault()}>
      <label for="f">Filter</label>
      <input id="f" type="search" placeholder="text; operator: shows what operators did" value={filter} onInput={e => setQuery({ q: e.currentTarget.value })} />
      <label>From <select value={from} onChange={e => setQuery({ from: e.currentTarget.value })}>{levels.map(l => <option key={l}>{l}</option>)}</select></label>
    </form>
    <Failure error={error} />
    {value && <p class="soft" role="status">{rows.length} of the last {value.length} lines, the newest first</p>}
    {rows.length > 0 && <Table label="Log" head={<><th>Time</th><th>Level</th><th>Line</th></>}>
      {rows.map(l => <tr key={l.time + l.text + l.attrs} class={`level-${l.level}`}><td title={exact(l.time)}>{clock(l.time)}</td><td>{l.level}</td><td class="text">{l.text} <span class="soft">{l.attrs}</span></td></tr>)}
    </Table>}
  </>
}
