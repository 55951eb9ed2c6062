import { get } from "./api"
import type { Missing, PlayerCounts, PlayersUsage, ProjectTimeline, ProjectUsage, Usage } from "./types"
import { bits, bytes, number, project, short, since } from "./format"
import { usePoll } from "./live"
import { Events } from "./matches"
import { Failure, HeadButton, MissingRelays, Table } from "./parts"
import { setQuery } from "./route"

interface Row extends ProjectUsage { name: string; perSecond?: number }
interface Values { at: number; since: string; rows: Row[]; missing?: Missing[] }

let before: Values | undefined // of the last call, for rates

async function load(): Promise<Values> {
  const usage = await get<Usage>("/usage")
  const rows = usage.projects.map(p => ({ ...p, name: project(p) }))
  const values: Values = { at: Date.now(), since: usage.since, rows, missing: usage.missing }
  const same = before?.missing?.length === values.missing?.length // Else a relay's usage came or went as a whole.
  for (const r of values.rows) {
    const was = same && before?.rows.find(b => b.name === r.name)
    if (was && before && values.at > before.at) r.perSecond = Math.max(0, r.bytes - was.bytes) / ((values.at - before.at) / 1000)
  }
  before = values
  return values
}

function csv(v: Values): string {
  const cell = (x: string | number) => typeof x === "number" ? String(x) : `"${x.replace(/^(?=[=+\-@\t\r])/, "'").replaceAll('"', '""')}"`
  const lines = v.rows.map(r => [r.name, r.allocations, r.hosts, r.players, r.player_seconds, r.datagrams, r.bytes].map(cell).join(","))
  return ["project,allocations,hosts,players,player_seconds,datagrams,bytes", ...lines].join("\r\n") + "\r\n"
}

export function UsagePage() {
  const { value, error } = usePoll("usage", 2000, load)
  return <>
    <Failure error={error} />
    {value && <>
      <p class="soft">{Date.parse(value.since) > 0 && `In the last ${since(value.since)}. `}
        <a download="ferry-usage.csv" href={"data:text/csv;charset=utf-8," + encodeURIComponent(csv(value))}>CSV</a></p>
      <MissingRelays what="The usage" missing={value.missing} />
      {value.rows.length === 0 ? <p>No project has used anything yet.</p> :
        <Table label="Usage" head={<><th>Project</th><th class="n">Allocations</th><th class="n">Hosts</th><th class="n">Players</th><th class="n">Player hours</th><th class="n">Datagrams</th><th class="n">Bytes</th><th class="n">Now</th></>}>
          {[...value.rows].sort((a, b) => b.bytes - a.bytes).map(r => <tr key={r.name}>
            <td>{r.project ? <a href={`#/project/${encodeURIComponent(r.project)}`}>{r.name}</a> : r.name}</td><td class="n">{number(r.allocations)}</td><td class="n">{number(r.hosts)}</td><td class="n">{number(r.players)}</td>
            <td class="n">{short(r.player_seconds / 3600)}</td><td class="n">{short(r.datagrams)}</td><td class="n">{bytes(r.bytes)}</td>
            <td class="n">{r.perSecond === undefined ? "" : bits(r.perSecond)}</td>
          </tr>)}
        </Table>}
    </>}
  </>
}

const playersShown = 100

/** Players shows what the players of a project sent. */
function Players({ name, query: url }: { name: string; query: URLSearchParams }) {
  const sort = url.get("sort") ?? "bytes"
  const query = new URLSearchParams({ project: name, sort, top: String(playersShown) })
  const { value, error } = usePoll(query.toString(), 10_000, () => get<PlayersUsage>(`/usage/players?${query}`))
  const head = { sort, order: "desc", set: (s: string) => setQuery({ sort: s }) }
  const counts = (c: PlayerCounts) => <>
    <td class="n">{number(c.allocations)}</td><td class="n">{number(c.live)}</td><td class="n">{short(c.player_seconds / 3600)}</td>
    <td class="n">{short(c.datagrams)}</td><td class="n">{bytes(c.bytes)}</td>
  </>
  return <section aria-label="Players">
    <h3>Players</h3>
    <Failure error={error} />
    <MissingRelays what="The usage" missing={value?.missing} />
    {value && <>
      <p class="soft">What each sent in the last {since(value.since)}; a restart of a relay begins at zero.</p>
      {value.players.length === 0 && value.others.allocations === 0 ? <p>No player has used anything yet.</p> :
        <Table label="Players" head={<><th>Player</th><th>Environment</th>
          <HeadButton name="allocations" label="Allocations" {...head} /><HeadButton name="live" label="Live" {...head} />
          <HeadButton name="seconds" label="Player hours" {...head} /><HeadButton name="datagrams" label="Datagrams" {...head} />
          <HeadButton name="bytes" label="Bytes" {...head} /></>}>
          {value.players.map(p => <tr key={p.digest}>
            <td class="name">{p.live > 0 ? <a href={`#/matches?q=${encodeURIComponent(p.player)}`}>{p.player}</a> : p.player}</td><td>{p.environment}</td>{counts(p)}
          </tr>)}
          {value.others.allocations > 0 && <tr key="others"><td>(all others)</td><td />{counts(value.others)}</tr>}
        </Table>}
    </>}
  </section>
}

export function ProjectPage({ name, query }: { name: string; query: URLSearchParams }) {
  const { value, error } = usePoll(name, 2000, () => get<ProjectTimeline>(`/timeline?limit=500&project=${encodeURIComponent(name)}`))
  return <>
    <h2>{name}</h2>
    <Players name={name} query={query} />
    <h3>Events</h3>
    <p class="soft">What happened to its allocations lately, and which of its calls were refused; the newest first.</p>
    <Failure error={error} />
    <MissingRelays what="The timeline" missing={value?.missing} />
    {value && <Events events={value.events} allocations />}
  </>
}
