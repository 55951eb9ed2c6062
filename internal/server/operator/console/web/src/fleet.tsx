import { call, get, onRelay } from "./api"
import type { Canary, FleetState as Fleet, Load, FleetNode as Node, Stats } from "./types"
import { Canaries, canaryProblems, canarySum, useCanaries } from "./canary"
import { DayView, LoadPlots, Over } from "./day"
import { DrainButton } from "./drain"
import { bits, counted, day, known, ms, number, perSecond, since } from "./format"
import { usePoll, type Live } from "./live"
import { Action, Failure, HeadButton, kindOf, ShortID, State, Table, Tile } from "./parts"
import { setQuery } from "./route"

const relayLink = (n: Node) => `#/relay/${n.id}`
const isReady = (n: Node) => n.state === "ready"
const serves = (n: Node) => n.state !== "dead" && n.state !== "stopped"

/** loadOf is what a relay tells of itself, or else what it announces in the store. One that has just started
 *  has measured nothing. */
function loadOf(n: Node): Load | undefined {
  const t = n.traffic
  return n.summary?.load.relays ? n.summary.load : (t && {
    at: "", datagrams_in: t.datagrams_in_per_second, datagrams_out: t.datagrams_out_per_second, bytes_in: t.bytes_in_per_second,
    bytes_out: t.bytes_out_per_second, drops: t.dropped_per_second, p99: 0, allocations: n.allocations, matches: n.matches ?? 0,
    players: n.bound, links: n.links, seats: n.seats, relays: 1,
  })
}

// What the operator does about a relay in a state.
const nextSteps: Record<string, string> = {
  dead: "it does not announce itself any more: look at its process and its machine. Its players come back if it starts again within recover_for",
  suspect: "it did not answer lately: it gets no new matches for a few seconds. If this goes on, look at its machine and at the network between",
  unknown: "the store does not answer, so its state is not known: look at the store; running matches go on",
  "not ready": "it does not accept requests yet, or stops: look at its log",
}

// about is what a problem concerns: "relays", or the name of a condition. Its tile is red, too.
interface Problem { key: string; state: string; name: string; text: string; to: string; since?: string; about?: string }

/** problemsOf are what is wrong with a fleet, with the next step. */
function problemsOf(f: Fleet, live: Live, canaries: Canary[]): Problem[] {
  const nodes = f.nodes ?? []
  const relays = nodes.filter(n => n.role !== "api")
  const all: Problem[] = canaryProblems(canaries)
  for (const c of live.samples[live.samples.length - 1]?.conditions ?? []) {
    if (c.state !== "ok") all.push({ key: "own " + c.name, state: c.state, name: c.name, text: c.text, since: c.since, to: `#/${c.page ?? "overview"}` })
  }
  for (const n of nodes) {
    const name = n.role === "api" ? n.id : `relay ${n.id.slice(0, 8)}`, to = n.role === "api" ? "#/fleet" : relayLink(n)
    const step = nextSteps[n.state]
    if (step) all.push({ key: n.id, state: kindOf(n.state), about: "relays", name, to, text: `${n.state}: ${step}`, since: n.last_heartbeat })
    else if (n.state === "draining") all.push({ key: n.id, state: "note", name, to, text: `draining, ${counted(n.allocations, "allocation")} left` })
    if (n.max_seats > 0 && n.seats > 0.8 * n.max_seats && serves(n)) {
      all.push({ key: n.id + "seats", state: "note", name, to, text: `${number(n.seats)} of ${number(n.max_seats)} seats are taken: add a relay in region ${n.region}` })
    }
    for (const c of n.summary?.conditions ?? []) {
      if (c.name !== "readiness") all.push({ key: n.id + c.name + c.text, state: c.state, about: c.name, name, to, text: `${c.name}: ${c.text}`, since: c.since })
    }
    if (n.lacks?.length) all.push({ key: n.id + "lacks", state: "note", name, to, text: `version ${n.version} lacks ${n.lacks.join(", ")}: upgrade it` })
  }
  for (const region of new Set(relays.map(n => n.region))) {
    if (!relays.some(n => n.region === region && isReady(n))) {
      all.push({ key: "region " + region, state: "problem", about: "relays", name: `region ${region || "–"}`, to: `#/fleet?q=${encodeURIComponent(region)}`, text: "no relay there is ready: no new matches begin in it" })
    }
  }
  const versions = new Set(nodes.map(n => n.version).filter(v => v))
  if (versions.size > 1) all.push({ key: "versions", state: "note", name: "versions", to: "#/fleet?sort=version&order=asc", text: `${[...versions].sort().join(", ")} run side by side` })
  return all.sort((a, b) => (a.state === "problem" ? 0 : 1) - (b.state === "problem" ? 0 : 1))
}

function Wrong({ all }: { all: Problem[] }) {
  return <section aria-label="What is wrong">
    <h2>What is wrong, and the next step</h2>
    {all.length === 0 ? <p><State state="ok" text="nothing" /></p> :
      <ul class="conditions">{all.map(p => <li key={p.key}><a href={p.to}><State state={p.state} text={p.name} /></a> <span>{p.text}{p.since && <span class="soft"> since {day(p.since)}</span>}</span></li>)}</ul>}
  </section>
}

const sum = (nodes: Node[], f: (n: Node) => number) => nodes.reduce((a, n) => a + f(n), 0)

/** seatsOf is the seats of relays that are taken, and of how many. */
function seatsOf(relays: Node[]): string {
  const most = sum(relays, n => n.max_seats)
  return number(sum(relays, n => n.seats)) + (relays.every(n => n.max_seats > 0) && most > 0 ? ` of ${number(most)}` : "")
}

/** Regions shows each region with its relays. */
function Regions({ relays }: { relays: Node[] }) {
  const regions = [...new Set(relays.map(n => n.region))].sort()
  return <section aria-label="Regions">
    <h2>Regions</h2>
    <div class="regions">{regions.map(region => {
      const here = relays.filter(n => n.region === region)
      const known = here.flatMap(n => loadOf(n) ?? [])
      const ready = here.filter(isReady).length
      return <div key={region} class="region">
        <h3><a href={`#/fleet?q=${encodeURIComponent(region)}`}>{region || "no region"}</a> <State state={ready === here.length ? "ok" : !ready || here.some(n => kindOf(n.state) === "problem") ? "problem" : "note"} text={`${ready} of ${here.length} ready`} /></h3>
        <dl class="facts">
          <dt>Players</dt><dd>{number(sum(here, n => n.bound))}</dd>
          <dt>Matches</dt><dd>{known.length ? number(known.reduce((a, l) => a + l.matches, 0)) : "not known"}</dd>
          <dt>Seats</dt><dd>{seatsOf(here)}</dd>
          <dt>Traffic out</dt><dd>{known.length ? bits(known.reduce((a, l) => a + l.bytes_out, 0)) : "not known"}</dd>
        </dl>
        <p class="relays">{here.map(n => <a key={n.id} href={relayLink(n)} title={n.state}><State state={n.state} text={n.id.slice(0, 8)} /></a>)}</p>
      </div>
    })}</div>
  </section>
}

const columns: Record<string, (n: Node) => string | number> = {
  id: n => n.id, region: n => n.region, state: n => n.state, players: n => n.bound, seats: n => n.seats, version: n => n.version,
  matches: n => loadOf(n)?.matches ?? -1, traffic: n => loadOf(n)?.bytes_out ?? -1,
  drops: n => loadOf(n)?.drops ?? -1, p99: n => loadOf(n)?.p99 ?? -1, up: n => n.since ? -Date.parse(n.since) : 0,
}

function NodeAction({ n, again }: { n: Node; again: () => void }) {
  if (n.role === "api") return null
  if (n.state === "draining") {
    return <Action label="Undrain" ask={`Let ${n.id.slice(0, 8)} take new matches again?`} done={again}
      act={async () => { await call("DELETE", `/nodes/${n.id}/drain`); return "takes new matches" }} />
  }
  return serves(n) && n.state !== "not ready" ? <DrainButton node={n} done={again} /> : null
}

export function FleetPage({ live, query }: { live: Live; query: URLSearchParams }) {
  const { value, error, again } = usePoll("fleet", 2000, () => get<Fleet>("/console/data/fleet"))
  const canaries = useCanaries()
  const seen = canaries.value && canaries.value.canaries.length > 0 ? canarySum(canaries.value.canaries) : undefined
  const filter = query.get("q") ?? "", sort = query.get("sort") ?? "region", order = query.get("order") ?? "asc"
  const head = { sort, order, set: (s: string, o: string) => setQuery({ sort: s, order: o }) }
  const now = live.samples[live.samples.length - 1]
  const isAPI = now?.mode === "api"
  const nodes = value?.nodes ?? []
  const relays = nodes.filter(n => n.role !== "api")
  const load = now?.load
  const by = columns[sort] ?? columns.region!
  const rows = nodes.filter(n => [n.id, n.role, n.region, n.state, n.version, n.summary?.host, ...n.udp ?? []].join(" ").toLowerCase().includes(filter.toLowerCase()))
    .sort((a, b) => { const x = by(a), y = by(b); return (x < y ? -1 : x > y ? 1 : 0) * (order === "asc" ? 1 : -1) || (a.id < b.id ? -1 : 1) })
  const asked = relays.filter(serves)
  const problems = value && isAPI ? problemsOf(value, live, canaries.value?.canaries ?? []) : []
  const is = (about: string) => problems.some(p => p.about === about && p.state === "problem")
  const unanswered = asked.filter(n => !n.summary).length
  return <>
    <Failure error={error ?? (value?.error ? new Error(value.error) : undefined)} />
    {value?.store_away_since && <p class="because because-problem" role="status">The store has not answered since {day(value.store_away_since)}: states are not known, others may be missing, and running matches go on.</p>}
    {value?.stores_away?.map(s => <p class="because because-problem" role="status" key={s.region}>The store of region {s.region} has not answered since {day(s.since)}: the states of its relays are not known, others may be missing, and running matches go on. Other regions are not affected.</p>)}
    {isAPI && value && <>
      <div class="tiles">
        <Tile to="#/fleet?sort=state" label="Relays ready" value={`${relays.filter(isReady).length} of ${relays.length}`} bad={is("relays")}
          more={`${counted(new Set(relays.map(n => n.region)).size, "region")}, ${counted(nodes.length - relays.length, "API process", "API processes")}`} />
        <Tile to="#/matches" label="Matches" value={known(load?.matches, number)} more={unanswered ? `of ${asked.length - unanswered} of ${asked.length} relays` : undefined} />
        <Tile to="#/matches?sort=players&order=desc" label="Players" value={number(sum(relays, n => n.bound))} />
        <Tile to="#/fleet?sort=seats&order=desc" label="Seats taken" value={number(sum(asked, n => n.seats))} more={asked.length > 0 && asked.every(n => n.max_seats > 0) ? `of ${number(sum(asked, n => n.max_seats))}` : undefined} />
        <Tile to="#/usage" label="Traffic out" value={known(load?.bytes_out, bits)} bad={is("sending")} more={load && `in ${bits(load.bytes_in)}`} />
        <Tile to="#/fleet?sort=drops&order=desc" label="Dropped" value={known(load?.drops, perSecond)} bad={is("attack")} />
        <Tile to="#/fleet?sort=p99&order=desc" label="Round trip, p99" value={load?.p99 ? ms(load.p99) : "–"} bad={is("round trip")} more="of the slowest relay" />
        <Tile to="#/fleet" label="Success, by canary" value={seen?.success ?? "–"} bad={seen?.fails} more={seen ? seen.untilIn : "no canary"} />
      </div>
      <Wrong all={problems} />
      {relays.length > 0 && <Regions relays={relays} />}
    </>}
    <Canaries all={canaries.value?.canaries} error={canaries.error} />
    {isAPI ? <h2>Processes</h2> : value && <p class="soft" role="status">{counted(relays.length, "relay")}, {counted(sum(relays, n => n.allocations), "allocation")}, {counted(sum(relays, n => n.bound), "player")}</p>}
    {isAPI && <form class="search" role="search" onSubmit={e => e.preventDefault()}>
      <label for="f">Filter</label>
      <input id="f" type="search" placeholder="id, region, state, version, host or address" value={filter} onInput={e => setQuery({ q: e.currentTarget.value })} />
    </form>}
    {value && <Table label="Processes" head={<>
      <HeadButton name="id" label="Process" text {...head} /><HeadButton name="region" label="Region" text {...head} /><HeadButton name="state" label="State" text {...head} /><th>Action</th>
      <HeadButton name="matches" label="Matches" {...head} /><HeadButton name="players" label="Players" {...head} /><HeadButton name="seats" label="Seats" {...head} />
      <HeadButton name="traffic" label="Traffic out" {...head} /><HeadButton name="drops" label="Dropped" {...head} /><HeadButton name="p99" label="p99" {...head} />
      <HeadButton name="version" label="Version" text {...head} /><HeadButton name="up" label="Up" {...head} /><th>Host and address</th></>}>
      {rows.map(n => {
        const l = loadOf(n), isRelay = n.role !== "api"
        return <tr key={n.role + n.id}>
          <td>{isRelay ? <a href={relayLink(n)}><ShortID id={n.id} /></a> : n.id} {n.role}</td><td>{n.region}</td>
          <td><State state={n.state} text={n.state === "draining" ? `draining, ${number(n.allocations)} left` : n.state} /></td>
          <td><NodeAction n={n} again={again} /></td>
          {isRelay ? <>
            <td class="n">{l ? number(l.matches) : "not known"}</td><td class="n">{number(n.bound)}</td>
            <td class="n">{seatsOf([n])}</td><td class="n">{l ? bits(l.bytes_out) : "not known"}</td><td class="n">{l ? perSecond(l.drops) : "not known"}</td><td class="n">{l?.p99 ? ms(l.p99) : ""}</td>
          </> : <><td class="n" /><td class="n" /><td class="n" /><td class="n" /><td class="n" /><td class="n" /></>}
          <td class="name">{n.version}</td><td class="n">{since(n.since)}</td><td class="name">{[n.summary?.host, ...n.udp ?? []].join(" ")}</td>
        </tr>
      })}
    </Table>}
    {isAPI && <>
      <Over day={query.get("over") === "day"} />
      {query.get("over") === "day" ? <DayView /> : <LoadPlots points={live.samples.flatMap(s => s.load ? [s.load] : [])} />}
    </>}
  </>
}

/** RelayPage shows one relay of a fleet. */
export function RelayPage({ id }: { id: string }) {
  const { value, error, again } = usePoll("fleet", 2000, () => get<Fleet>("/console/data/fleet"))
  const stats = usePoll("stats " + id, 5000, () => get<Stats>(onRelay(id, "/stats")))
  const reasons = usePoll("reasons", 3_600_000, () => get<Record<string, { means: string; do: string }>>("/console/data/reasons"))
  const n = value?.nodes?.find(n => n.id === id)
  if (!n) return value ? <p>The fleet has no relay <code>{id}</code>.</p> : <Failure error={error} />
  const l = loadOf(n)
  const drops = Object.entries(stats.value?.drops ?? {}).sort((a, b) => b[1] - a[1])
  return <>
    <h2>Relay <code>{id}</code></h2>
    <p class="because"><State state={n.state} />{nextSteps[n.state] && `: ${nextSteps[n.state]}`}</p>
    <Failure error={error} />
    <dl class="facts">
      {n.summary && <><dt>Host</dt><dd>{n.summary.host}</dd></>}
      <dt>Region</dt><dd>{n.region}</dd><dt>Version</dt><dd>{n.version}</dd>
      {n.since && <><dt>Up</dt><dd>{since(n.since)}</dd></>}
      {n.last_heartbeat && <><dt>Announced itself</dt><dd>{since(n.last_heartbeat)} ago</dd></>}
      <dt>Address</dt><dd>{n.udp?.join(" ")}</dd>
      <dt>Matches</dt><dd>{l ? <a href="#/matches">{number(l.matches)}</a> : "not known"}</dd>
      <dt>Players</dt><dd>{number(n.bound)}</dd><dt>Seats</dt><dd>{seatsOf([n])}</dd>
      <dt>Traffic</dt><dd>{l ? `in ${bits(l.bytes_in)}, out ${bits(l.bytes_out)}` : "not known"}</dd>
      <dt>Round trip, p99</dt><dd>{l?.p99 ? ms(l.p99) : "not known"}</dd>
      <dt>Dropped</dt><dd>{l ? perSecond(l.drops) : "not known"}</dd>
    </dl>
    <p class="actions"><NodeAction n={n} again={again} /></p>
    {n.summary?.conditions && <section aria-label="State"><h2>What is wrong</h2><ul class="conditions">
      {n.summary.conditions.map((c, i) => <li key={i}><State state={c.state} text={c.name} /> <span>{c.text}{c.since && <span class="soft"> since {day(c.since)}</span>}</span></li>)}
    </ul></section>}
    <section>
      <h2>Drops by reason</h2>
      <Failure error={stats.error} />
      {stats.value && drops.length === 0 && <p>None since its start.</p>}
      {drops.length > 0 && <Table label="Drops by reason" head={<><th>Reason</th><th class="n">Since its start</th><th>What it means, and what to do</th></>}>
        {drops.map(([reason, count]) => <tr key={reason}><td>{reason}</td><td class="n">{number(count)}</td>
          <td class="text">{reasons.value?.[reason]?.means} <strong>{reasons.value?.[reason]?.do}</strong></td></tr>)}
      </Table>}
    </section>
  </>
}
