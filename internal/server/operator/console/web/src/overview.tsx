import type { Condition, Sample } from "./types"
import { DayView, Over } from "./day"
import { bits, counted, day, known, ms, number, perSecond, short, since } from "./format"
import { nowSeconds, rate, rates, type Live } from "./live"
import { State, Table, Tile } from "./parts"
import { Plot } from "./plot"

const sum = (counts: Record<string, number> | undefined) => Object.values(counts ?? {}).reduce((a, b) => a + b, 0)
const total = (numbers: number[] | undefined) => (numbers ?? []).reduce((a, b) => a + b, 0)

// Problems come first.
const weight = (c: Condition) => ["problem", "note", "ok"].indexOf(c.state)

export function Conditions({ sample }: { sample: Sample }) {
  return <section aria-label="State">
    <h2>State</h2>
    <ul class="conditions">
      {[...sample.conditions].sort((a, b) => weight(a) - weight(b)).map((c, i) => <li key={c.name + i}><State state={c.state} text={c.name} /> <span>
        {c.text}{c.state !== "ok" && c.since && <span class="soft"> since {day(c.since)}</span>}{c.page && <> <a href={`#/${c.page}`}>{c.page}</a></>}</span></li>)}
    </ul>
  </section>
}

export function Overview({ live, query }: { live: Live; query: URLSearchParams }) {
  const { samples } = live
  const now = samples[samples.length - 1]
  if (!now) return <p>Waiting for the first values…</p>
  if (!now.stats) return <><p>This process has no relay: see <a href="#/fleet">Fleet</a>.</p><Conditions sample={now} /></>
  const st = now.stats
  const shown = (f: (s: Sample) => number, format: (n: number) => string) => known(rate(samples, nowSeconds, f), format)
  const is = (name: string) => now.conditions.some(c => c.name === name && c.state === "problem")
  const reasons = Object.keys(st.drops).sort((a, b) => (st.drops[b] ?? 0) - (st.drops[a] ?? 0))
  return <>
    <div class="tiles">
      <Tile to="#/usage" label="Traffic in" value={shown(s => s.stats!.bytes_in, bits)} more={shown(s => s.stats!.datagrams_in, short) + " datagrams/s"} />
      <Tile to="#/usage" label="Traffic out" value={shown(s => s.stats!.bytes_out, bits)} more={shown(s => s.stats!.datagrams_out, short) + " datagrams/s"} bad={is("sending")} />
      <Tile to="#/matches" label="Players" value={number(st.bound)} more={now.load && counted(now.load.matches, "match", "matches")} />
      <Tile to="#/fleet" label="Allocations" value={number(st.allocations)} more={`${counted(st.links, "link")}, ${counted(st.seats, "seat")}`} />
      <Tile to="#/overview" label="Round trip, p99" value={now.rtt && now.rtt.lost < 60 ? ms(now.rtt.p99) : "–"} bad={is("round trip")}
        more={now.rtt && `p50 ${ms(now.rtt.p50)}${now.rtt.lost ? `, ${now.rtt.lost} lost` : ""}`} />
      <Tile to="#/attack" label="Dropped" value={shown(s => sum(s.stats!.drops) + s.stats!.kernel_drops, perSecond)} bad={is("attack")} more={`running for ${since(now.since)}`} />
    </div>
    <Conditions sample={now} />
    <Over day={query.get("over") === "day"} />
    {query.get("over") === "day" ? <DayView /> : <div class="plots">
      <Plot title="Datagrams per second" samples={samples} format={short} series={[
        { label: "in", values: rates(samples, s => s.stats!.datagrams_in) },
        { label: "out", values: rates(samples, s => s.stats!.datagrams_out) },
      ]} />
      <Plot title="Traffic" samples={samples} format={bits} series={[
        { label: "in", values: rates(samples, s => s.stats!.bytes_in) },
        { label: "out", values: rates(samples, s => s.stats!.bytes_out) },
      ]} />
      <Plot title="Received by transport, per second" samples={samples} format={short} series={[
        { label: "UDP and DTLS", values: rates(samples, s => total(s.stats!.workers)) },
        { label: "WebSocket", values: rates(samples, s => total(s.stats!.intakes)) },
        ...(st.fast_path > 0 ? [{ label: "fast path", values: rates(samples, s => s.stats!.fast_path) }] : []),
      ]} />
      <Plot title="Processor time of each worker" samples={samples} format={n => n.toFixed(n < 10 ? 1 : 0) + " %"} series={
        (now.worker_cpu ?? []).map((_, i) => ({ label: `worker ${i}`, values: rates(samples, s => s.worker_cpu?.[i] ?? 0).map(v => v === null ? null : v * 100) }))
      } />
      <Plot title="Allocations, players and links" samples={samples} format={short} series={[
        { label: "allocations", values: samples.map(s => s.stats?.allocations ?? null) },
        { label: "bound", values: samples.map(s => s.stats?.bound ?? null) },
        { label: "links", values: samples.map(s => s.stats?.links ?? null) },
      ]} />
      <Plot title="Relay's round trip" samples={samples} format={ms} series={[
        { label: "last", values: samples.map(s => s.rtt && s.rtt.last >= 0 ? s.rtt.last : null) },
        { label: "p99 of a minute", values: samples.map(s => s.rtt?.p99 ?? null) },
      ]} />
    </div>}
    <section>
      <h2><a href="#/attack">Dropped datagrams by reason</a></h2>
      {reasons.length === 0 ? <p>None since the start.</p> :
        <Table label="Dropped datagrams by reason" head={<><th>Reason</th><th class="n">Per second</th><th class="n">Since the start</th></>}>
          {reasons.map(r => <tr key={r}><td>{r}</td><td class="n">{shown(s => s.stats!.drops[r] ?? 0, short)}</td><td class="n">{number(st.drops[r] ?? 0)}</td></tr>)}
        </Table>}
    </section>
  </>
}
