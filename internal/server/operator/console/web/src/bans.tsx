import { useState } from "preact/hooks"
import { call, get, isViewer, plain } from "./api"
import type { Affected, Ban, Bans } from "./types"
import { day } from "./format"
import { usePoll } from "./live"
import { Action, askFirst, Failure, StoreAway, Table } from "./parts"

const durations: [string, string][] = [["1h", "1 hour"], ["24h", "1 day"], ["168h", "7 days"], ["720h", "30 days"], ["8760h", "1 year"]]

/** Subject is a prefix, or a player with project and environment, and for how long it is banned. */
type Subject = Record<string, string>

async function ban(subject: Subject): Promise<string> {
  const b = await call<Ban>("POST", `/bans?${new URLSearchParams(subject)}`)
  return `banned until ${day(b.until)}`
}

/** askBan is the question before a ban: what it ends and shuts out, or why there can be no such ban. */
const askBan = (subject: Subject) => () => {
  const query = new URLSearchParams(subject)
  const { value, error } = usePoll(`affected ${query}`, 10_000, () => get<Affected>(`/bans/affected?${query}`))
  return <>
    <h2>Ban {subject.prefix ?? `${subject.player} of ${subject.project}/${subject.environment}`} for {durations.find(([d]) => d === (subject.for ?? "24h"))?.[1]}</h2>
    <Failure error={error} />
    {value?.refused ? <p class="failure" role="alert">{plain(value.refused)}</p>
      : <p>{value?.text ?? (error ? "What the ban ends now is not known." : "Counting what the ban ends…")}</p>}
  </>
}

export function BanButton({ subject, done }: { subject: Subject; done?: () => void }) {
  return <Action label="Ban" danger ask={askBan(subject)} act={() => ban(subject)} done={done} />
}

export function BansPage({ query }: { query: URLSearchParams }) {
  const { value, error, again } = usePoll("bans", 2000, () => get<Bans>("/bans"))
  const [form, setForm] = useState<Record<string, string>>({ kind: "prefix", for: "24h", prefix: query.get("prefix") ?? "" })
  const [result, setResult] = useState("")
  const field = (id: string, label: string) => <label for={`ban-${id}`}>{label} <input id={`ban-${id}`} value={form[id] ?? ""}
    onInput={e => setForm({ ...form, [id]: e.currentTarget.value })} /></label>
  const submit = (e: Event) => {
    e.preventDefault()
    const names = form.kind === "prefix" ? ["prefix"] : ["player", "project", "environment"]
    const subject = Object.fromEntries([...names, "for", "reason"].filter(n => form[n]).map(n => [n, form[n]!.trim()]))
    setResult("")
    askFirst({ label: "Ban", danger: true, ask: askBan(subject), act: () => ban(subject), done: r => { setResult(r); again() } })
  }
  return <>
    <form class="search" onSubmit={submit}>
      <label>Ban a <select value={form.kind} onChange={e => setForm({ ...form, kind: e.currentTarget.value })}>
        <option value="prefix">network</option><option value="player">player</option></select></label>
      {form.kind === "prefix" ? field("prefix", "Address or prefix") : <>{field("player", "Player")}{field("project", "Project")}{field("environment", "Environment")}</>}
      <label>for <select value={form.for} onChange={e => setForm({ ...form, for: e.currentTarget.value })}>
        {durations.map(([v, text]) => <option key={v} value={v}>{text}</option>)}</select></label>
      {field("reason", "Reason, which the player sees")}
      <button class="danger" disabled={isViewer}>Ban</button>
      {result && <span role="status">{result}</span>}
    </form>
    <Failure error={error} />
    <StoreAway since={value?.store_away_since} so={value?.not_known ? "the bans are not known." : "these are the bans of that time."} />
    {value && !value.not_known && <p class="soft" role="status">{value.bans.length === 0 ? "No player and no network is banned." : `${value.bans.length} ${value.bans.length === 1 ? "ban" : "bans"}; those that end first come first.`}</p>}
    {value && value.bans.length > 0 && <Table label="Bans" head={<><th>Player or network</th><th>Since</th><th>Until</th><th>Reason</th><th>Action</th></>}>
      {value.bans.map(b => <tr key={b.id}>
        <td>{b.prefix ?? `${b.player} of ${b.project}/${b.environment}`}</td><td>{day(b.since)}</td><td>{day(b.until)}</td><td class="text">{b.reason}</td>
        <td><Action label="Unban" ask="End this ban?" done={again} act={async () => { await call("DELETE", `/bans/${b.id}`); return "removed" }} /></td>
      </tr>)}
    </Table>}
  </>
}
