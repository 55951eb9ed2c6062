import { get } from "./api"
import type { Reason, Source, WhyEvent } from "./types"
import { BanButton } from "./bans"
import { age, clock, known, number, perSecond, short, since } from "./format"
import { nowSeconds, older, rate, rates, usePoll, type Live } from "./live"
import { matchLink } from "./matches"
import { Failure, ShortID, State, Table } from "./parts"
import { Plot } from "./plot"


export function AttackPage({ live }: { live: Live }) {
  const { samples } = live
  const { value, error } = usePoll("refusals", 2000, () => get<WhyEvent[]>("/console/data/refusals"))
  const sources = usePoll("sources", 1000, () => get<Source[]>("/console/data/sources"))
  const reasons = usePoll("reasons", 3_600_000, () => get<Record<string, Reason>>("/console/data/reasons"))
  const now = samples[samples.length - 1]
  if (!now) return <p>No figures have arrived yet.</p>
  if (!now.stats) return <p>This process has no relay. <a href="#/fleet">Fleet</a> shows the drops of each relay; a relay's own console shows their reasons and sources.</p>
  const earlier = samples.slice(0, older(samples, nowSeconds))
  const rows = Object.keys(now.stats.drops).map(reason => {
    const count = (s: { stats?: { drops: Record<string, number> } }) => s.stats?.drops[reason] ?? 0
    return { reason, now: rate(samples, nowSeconds, count), before: rate(earlier, Infinity, count), total: now.stats!.drops[reason] ?? 0 }
  }).sort((a, b) => (b.now ?? 0) - (a.now ?? 0) || (b.before ?? 0) - (a.before ?? 0) || b.total - a.total)
  const state = now.conditions.find(c => c.name === "attack")
  return <>
    {state && <p class={`because because-${state.state}`} role="status"><State state={state.state} text={state.state === "ok" ? "nothing unusual" : "attack or fault"} /> {state.text}
      {state.state !== "ok" && state.since && `, for ${since(state.since)}`}</p>}
    <Plot title="Dropped per second" samples={samples} format={short} now={i => rows[i]!.now}
      series={rows.filter(r => r.now || r.before).slice(0, 6).map(r => ({ label: r.reason, values: rates(samples, s => s.stats?.drops[r.reason] ?? 0) }))} />
    <section>
      <h2>Drops by reason</h2>
      {rows.length === 0 ? <p>None since the start.</p> :
        <Table label="Drops by reason" head={<><th>Reason</th><th class="n">Now</th><th class="n">Before</th><th class="n">Since the start</th><th>What it means, and what to do</th></>}>
          {rows.map(r => <tr key={r.reason}><td>{r.reason}</td><td class="n">{known(r.now, perSecond)}</td><td class="n">{known(r.before, perSecond)}</td><td class="n">{number(r.total)}</td>
            <td class="text">{reasons.value?.[r.reason]?.means} <strong>{reasons.value?.[r.reason]?.do}</strong></td></tr>)}
        </Table>}
      <p class="soft">Now is the mean of the last {nowSeconds} s, before is that of up to five minutes earlier.</p>
    </section>
    <Failure error={sources.error ?? error} />
    <section>
      <h2>Sources by network</h2>
      <p class="soft">Of refused messages that name an allocation of this relay, at most five a second of a network. Sources of plain UDP may be forged; a flood of junk names no allocation and is not here.</p>
      {!sources.value?.length ? <p>None within an hour.</p> :
        <Table label="Sources by network" head={<><th>Network</th><th>Action</th><th class="n">Now</th><th class="n">Refused</th><th>Last</th><th>Reasons</th></>}>
          {sources.value.map(s => <tr key={s.prefix}><td>{s.prefix}</td>
            <td><BanButton subject={{ prefix: s.prefix }} /></td>
            <td class="n">{perSecond(s.rate)}</td><td class="n">{number(s.count)} in {age((Date.parse(s.last) - Date.parse(s.first)) / 1000)}</td><td>{since(s.last)} ago</td><td class="text">{s.reasons?.join("; ")}</td></tr>)}
        </Table>}
    </section>
    {value && value.length > 0 && <section>
      <h2>Newest refusals</h2>
      <Table label="Newest refusals" head={<><th>Last</th><th>Allocation</th><th>Message</th><th>From</th><th class="n">Count</th><th>Reason</th></>}>
        {value.slice(0, 50).map(r => <tr key={[r.id, r.what, r.endpoint, r.reason].join()}><td>{clock(r.last)}</td><td><a href={matchLink(r.id!)}><ShortID id={r.id!} /></a></td><td>{r.what}</td><td>{r.endpoint}</td><td class="n">{number(r.count)}</td><td class="text">{r.reason}</td></tr>)}
      </Table>
    </section>}
  </>
}
