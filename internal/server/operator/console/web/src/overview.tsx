import type { Sample } from "./api"
import { bits, counted, ms, number, short, since } from "./format"
import { rate, rates, type Live } from "./live"
import { State, Table, Tile } from "./parts"
import { Plot } from "./plot"

const sum = (counts: Record<string, number> | undefined) => Object.values(counts ?? {}).reduce((a, b) => a + b, 0)
const total = (numbers: number[] | undefined) => (numbers ?? []).reduce((a, b) => a + b, 0)

export function Conditions({ sample }: { sample: Sample }) {
  return <section aria-label="State">
    <h2>State</h2>
    <ul class="conditions">
      {sample.conditions.map(c => <li key={c.name + c.text}><State state={c.state} text={c.name} /> <span>{c.text}</span></li>)}
    </ul>
  </section>
}

export function Overview({ live }: { live: Live }) {
  const { samples } = live
  const now = samples[samples.length - 1]
  if (!now) return <p>Waiting for the first values…</p>
  if (!now.stats) return <Conditions sample={now} />
  const st = now.stats
  const perSecond = (f: (s: Sample) => number) => rate(samples, 3, f)
  const reasons = Object.keys(st.drops).sort((a, b) => (st.drops[b] ?? 0) - (st.drops[a] ?? 0))
  return <>
    <div class="tiles">
      <Tile label="Datagrams in" value={short(perSecond(s => s.stats!.datagrams_in)) + "/s"} more={bits(perSecond(s => s.stats!.bytes_in))} />
      <Tile label="Datagrams out" value={short(perSecond(s => s.stats!.datagrams_out)) + "/s"} more={bits(perSecond(s => s.stats!.bytes_out))} />
      <Tile label="Allocations" value={number(st.allocations)} more={`${number(st.seats)} seats`} />
      <Tile label="Players bound" value={number(st.bound)} more={counted(st.links, "link")} />
      <Tile label="Relay's round trip" value={now.rtt ? ms(now.rtt.last) : "–"} more={now.rtt && `p50 ${ms(now.rtt.p50)}, p99 ${ms(now.rtt.p99)}${now.rtt.lost ? `, ${now.rtt.lost} lost` : ""}`} />
      <Tile label="Dropped" value={short(perSecond(s => sum(s.stats!.drops) + s.stats!.kernel_drops)) + "/s"} more={`running for ${since(now.since)}`} />
    </div>
    <Conditions sample={now} />
    <div class="plots">
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
      ]} />
      <Plot title="Processor time of each worker" samples={samples} format={n => n.toFixed(0) + " %"} series={
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
    </div>
    <section>
      <h2>Dropped datagrams by reason</h2>
      {reasons.length === 0 ? <p>None since the start.</p> :
        <Table label="Dropped datagrams by reason" head={<><th>Reason</th><th class="n">Per second</th><th class="n">Since the start</th></>}>
          {reasons.map(r => <tr key={r}><td>{r}</td><td class="n">{short(rate(samples, 10, s => s.stats!.drops[r] ?? 0))}</td><td class="n">{number(st.drops[r] ?? 0)}</td></tr>)}
        </Table>}
    </section>
  </>
}
