import { useState } from "preact/hooks"
import { call, get } from "./api"
import type { SettingChange as Change, LogLevel, ReloadResult as Reload, Settings } from "./types"
import { usePoll } from "./live"
import { Action, Failure, Table } from "./parts"
import { setQuery } from "./route"

function Changes({ title, list }: { title: string; list: Change[] | null }) {
  if (!list?.length) return null
  return <><h3>{title}</h3>
    <Table label={title} head={<><th>Setting</th><th>Was</th><th>Is</th></>}>
      {list.map(c => <tr key={c.key}><td><code>{c.key}</code></td><td>{c.was}</td><td>{c.now}</td></tr>)}
    </Table></>
}

export function SettingsPage({ query }: { query: URLSearchParams }) {
  const filter = query.get("q") ?? ""
  const [done, setDone] = useState<Reload>()
  const { value, error, again } = usePoll("config", 10000, () => get<Settings>("/config"))
  const level = usePoll("level", 10000, () => get<LogLevel>("/log-level"))
  const rows = (value?.settings ?? []).filter(s => (s.key + s.value + s.source).toLowerCase().includes(filter.toLowerCase()))
  const setLevel = async (to: string) => { await call("PUT", `/log-level?level=${to}`).catch(() => {}); level.again(); again() }
  return <>
    <div class="row">
      <Action label="Reload" ask="Read the settings file, the certificate and the tokens again?" done={again}
        act={async () => { const r = await call<Reload>("POST", "/reload"); setDone(r); return r.changed?.length ? `${r.changed.length} changed` : "nothing has changed" }} />
      <label>Log level <select value={level.value?.level} onChange={e => setLevel(e.currentTarget.value)}>
        {["debug", "info", "warn", "error"].map(l => <option key={l}>{l}</option>)}
      </select></label>
    </div>
    {done && <>
      <Changes title="Changed by the reload" list={done.changed} />
      <Changes title="Needs a restart" list={done.needs_restart} />
      {done.notes?.map(n => <p key={n}>{n}</p>)}
    </>}
    <Failure error={error ?? level.error} />
    <form class="search" role="search" onSubmit={e => e.preventDefault()}>
      <label for="f">Filter</label>
      <input id="f" type="search" value={filter} onInput={e => setQuery({ q: e.currentTarget.value })} />
    </form>
    {value && <Table label="Settings" head={<><th>Setting</th><th>Value</th><th>Source</th><th>A change takes effect</th></>}>
      {rows.map(s => <tr key={s.key}><td><code>{s.key}</code></td><td class="text">{s.value}</td><td>{s.source}</td><td>{s.reloads ? "by reload" : "after a restart"}</td></tr>)}
    </Table>}
  </>
}
