import { useRef } from "preact/hooks"
import { call, get, onRelay, save } from "./api"
import type { Allocation, Allocations, Matches, Why, WhyEvent } from "./types"
import { BanButton } from "./bans"
import { age, bits, clock, number, perSecond, project, short } from "./format"
import { usePoll } from "./live"
import { Action, Failure, HeadButton, MissingRelays, ShortID, Table } from "./parts"
import { setQuery } from "./route"

const pageSize = 50

export const matchLink = (id: string, relay?: string) => `#/match/${id}${relay ? `/${relay}` : ""}`

export function MatchesPage({ query: url }: { query: URLSearchParams }) {
  const search = url.get("q") ?? "", sort = url.get("sort") ?? "age", order = url.get("order") ?? "asc"
  const page = Math.max(0, parseInt(url.get("page") ?? "1", 10) - 1 || 0)
  const query = new URLSearchParams({ sort, order, offset: String(page * pageSize), limit: String(pageSize) })
  if (search) query.set("q", search)
  const { value: fresh, error } = usePoll(query.toString(), 2000, () => get<Matches>(`/matches?${query}`))
  const last = useRef<Matches | undefined>(undefined) // The list stays until there is another: a list that goes takes the focus along.
  if (fresh) last.current = fresh
  const value = error ? fresh : last.current
  const pages = value ? Math.max(1, Math.ceil(value.total / pageSize)) : 1
  const toPage = (n: number) => setQuery({ page: n ? String(n + 1) : "" })
  const head = { sort, order, set: (s: string, o: string) => setQuery({ sort: s, order: o, page: "" }) }
  return <>
    <form class="search" role="search" onSubmit={e => e.preventDefault()}>
      <label for="q">Search</label>
      <input id="q" type="search" placeholder="join code, allocation, player, project, address or prefix" value={search}
        onInput={e => setQuery({ q: e.currentTarget.value, page: "" })} />
    </form>
    <Failure error={error} />
    {value && <p class="soft" role="status">{number(value.total)} {value.total === 1 ? "match" : "matches"}{value.missing ? " at the relays that answered" : value.truncated && "; there are more, which were not searched"}</p>}
    <MissingRelays what="The list" missing={value?.missing} />
    {value && value.matches.length > 0 && <Table label="Matches" head={<>
      <th>Host</th><th>Code</th><HeadButton name="project" label="Project" text {...head} />
      <HeadButton name="players" label="Players" {...head} /><HeadButton name="age" label="Age" {...head} />
      <HeadButton name="heard" label="Heard" {...head} /><HeadButton name="rate" label="Traffic" {...head} /><th>Transport</th><th>Address</th>
    </>}>
      {value.matches.map(({ host, relay, datagrams_per_second, bytes_per_second }) => <tr key={host.id}>
        <td><a href={matchLink(host.id, relay)}><ShortID id={host.id} /></a></td>
        <td>{host.join_code && <code>{host.join_code}</code>}</td>
        <td>{project(host)}</td>
        <td class="n">{host.connections} of {host.max_connections ?? 0}</td>
        <td class="n">{age(host.age_seconds)}</td>
        <td class="n">{host.bound ? age(host.heard_seconds_ago) : "not bound"}</td>
        <td class="n" title={short(datagrams_per_second) + " datagrams/s"}>{bits(bytes_per_second)}</td>
        <td>{host.transport}</td><td>{host.endpoint}</td>
      </tr>)}
    </Table>}
    {pages > 1 && <nav class="pages" aria-label="Pages">
      <button disabled={page === 0} onClick={() => toPage(page - 1)}>Previous</button>
      <span>page {page + 1} of {number(pages)}</span>
      <button disabled={page + 1 >= pages || (page + 2) * pageSize > 9000} onClick={() => toPage(page + 1)}>Next</button>
    </nav>}
  </>
}

interface Rate { datagrams: number; bytes: number }
interface MatchValues { at: number; why: Why; host?: Allocation; players: Allocation[]; rates: Map<string, Rate> }

let before: MatchValues | undefined // of the last call, for rates

/** sentSince is what each member has sent per second since the last call. */
function sentSince(now: MatchValues) {
  const was = new Map([before?.host, ...(before?.players ?? [])].flatMap(a => a ? [[a.id, a] as const] : []))
  for (const a of [now.host, ...now.players]) {
    const b = a && was.get(a.id)
    if (!a || !b || !before) continue
    const seconds = (now.at - before.at) / 1000
    if (seconds <= 0 || seconds > 60) continue
    now.rates.set(a.id, {
      datagrams: (a.datagrams_sent - b.datagrams_sent) / seconds,
      bytes: (a.bytes_sent - b.bytes_sent) / seconds,
    })
  }
  before = now
  return now
}

const rateText = (r?: Rate) => r ? `${perSecond(r.datagrams)}, ${bits(r.bytes)}` : ""

async function load(id: string, relay?: string): Promise<MatchValues> {
  const why = await get<Why>(onRelay(relay, `/why/${id}`))
  const self = await get<Allocation>(onRelay(relay, `/allocations/${id}`)).catch(() => undefined)
  if (!self || self.role !== "host") return sentSince({ at: Date.now(), why, host: self, players: [], rates: new Map() })
  const list = await get<Allocations>(onRelay(relay, `/allocations/${id}/players?limit=1000`))
  return sentSince({ at: Date.now(), why, host: self, players: list.allocations, rates: new Map() })
}

export function MatchPage({ id, relay }: { id: string; relay?: string }) {
  const { value, error, again } = usePoll(id + relay, 1000, () => load(id, relay))
  if (!value) return <Failure error={error} />
  const { why, host, players, rates } = value
  const toHost = [...rates].filter(([p]) => p !== id).reduce((a, [, r]) => ({ datagrams: a.datagrams + r.datagrams, bytes: a.bytes + r.bytes }), { datagrams: 0, bytes: 0 })
  const because = new Map(why.players?.map(p => [p.id, p.because]))
  const gone = (why.players ?? []).filter(p => !players.some(q => q.id === p.id))
  return <>
    <h2>{why.role === "joiner" ? "Player" : "Match of host"} <code>{id}</code></h2>
    <p class="because">{why.because}</p>
    <Failure error={error} />
    {host && <dl class="facts">
      {why.join_code && <><dt>Join code</dt><dd><code>{why.join_code}</code></dd></>}
      {host.role === "joiner" && <><dt>Host</dt><dd><a href={matchLink(host.match, relay)}><ShortID id={host.match} /></a></dd></>}
      <dt>Project</dt><dd>{project(host)}</dd>
      {host.player && <><dt>Player</dt><dd>{host.player}</dd></>}
      <dt>Transport</dt><dd>{host.bound ? host.transport : "not bound"}</dd>
      {host.endpoint && <><dt>Address</dt><dd>{host.endpoint}</dd></>}
      <dt>Age</dt><dd>{age(host.age_seconds)}{host.recovered && ", since the restart"}</dd>
      <dt>Last heard</dt><dd>{age(host.heard_seconds_ago)} ago</dd>
      {host.role === "host" && <><dt>Players</dt><dd>{host.connections} of {host.max_connections ?? 0}</dd></>}
      <dt>Sends</dt><dd>{rateText(rates.get(id))}</dd>
      {host.role === "host" && <><dt>Receives</dt><dd>{rateText(toHost)}</dd></>}
      {host.receiver_size_drops > 0 && <><dt>Too large for it</dt><dd>{number(host.receiver_size_drops)} messages</dd></>}
      {host.large_messages > 0 && <><dt>Maybe too large</dt><dd>{number(host.large_messages)} messages</dd></>}
    </dl>}
    {host && <p class="actions">
      {host.role === "host" ? <Action label="Close" danger ask="End this match for all players?" done={again}
        act={async () => { await call("DELETE", `/allocations/${id}`); return "closed" }} />
        : <Action label="Kick" danger ask="Remove this player?" done={again}
          act={async () => { await call("POST", `/allocations/${id}/kick`); return "kicked" }} />}
      <Action label="Capture" ask="Save what this match sends in the next 5 seconds, for Wireshark?" done={again}
        act={async () => `captured ${number(await save(onRelay(relay, `/allocations/${id}/capture?seconds=5`), `${id}.pcapng`))} bytes`} />
    </p>}
    {players.length > 0 && <section>
      <h3>Players</h3>
      <Table label="Players" head={<><th>Player</th><th>Transport</th><th>Address</th><th class="n">Age</th><th class="n">Heard</th><th class="n">Sends</th><th>State</th><th>Action</th></>}>
        {players.map(p => <tr key={p.id}>
          <td class="name"><a href={matchLink(p.id, relay)}><ShortID id={p.id} /></a>{p.player && ` ${p.player}`}</td>
          <td>{p.transport}</td><td>{p.endpoint}</td>
          <td class="n">{age(p.age_seconds)}</td><td class="n">{p.bound ? age(p.heard_seconds_ago) : ""}</td>
          <td class="n">{rateText(rates.get(p.id))}</td>
          <td class="text">{because.get(p.id) ?? (p.connections ? "linked" : "not linked")}</td>
          <td><div class="actions"><Action label="Kick" danger ask={`Remove ${p.id.slice(0, 8)}?`} done={again}
            act={async () => { await call("POST", `/allocations/${p.id}/kick`); return "kicked" }} />
            {p.player && p.project && p.environment && <BanButton done={again}
              subject={{ player: p.player, project: p.project, environment: p.environment }} />}</div></td>
        </tr>)}
      </Table>
    </section>}
    {gone.length > 0 && <section>
      <h3>Players that have gone</h3>
      <ul class="gone">{gone.map(p => <li key={p.id}><a href={matchLink(p.id, relay)}><ShortID id={p.id} /></a> {p.because}</li>)}</ul>
    </section>}
    <section>
      <h3>Timeline</h3>
      <Events events={[...why.events ?? []].reverse()} relay={relay} />
    </section>
  </>
}

/** Events is a table of events, the newest first, with the allocation of each if they are of several. */
export function Events({ events, allocations, relay }: { events: WhyEvent[]; allocations?: boolean; relay?: string }) {
  if (!events.length) return <p>No events are kept.</p>
  return <Table label="Timeline" head={<><th>Time</th>{allocations && <th>Allocation</th>}<th>Event</th><th>With</th><th class="n">Count</th><th>Reason</th></>}>
    {events.map(e => <tr key={[e.id, e.what, e.first, e.peer, e.reason].join()}>
      <td title={e.last}>{clock(e.last)}</td>
      {allocations && <td>{e.id && <a href={matchLink(e.id, e.relay)}><ShortID id={e.id} /></a>}</td>}
      <td>{e.what}</td>
      <td>{e.peer ? <a href={matchLink(e.peer, e.relay ?? relay)}><ShortID id={e.peer} /></a> : e.endpoint}</td>
      <td class="n">{e.count > 1 ? `${number(e.count)} since ${clock(e.first)}` : ""}</td><td class="text">{e.reason}</td>
    </tr>)}
  </Table>
}
