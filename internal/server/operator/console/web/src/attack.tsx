import { get, type Refusal } from "./api"
import { ban } from "./bans"
import { clock, number, short } from "./format"
import { rate, usePoll, type Live } from "./live"
import { matchLink } from "./matches"
import { Action, Failure, ShortID, Table } from "./parts"
import { Plot } from "./plot"
import { rates } from "./live"

// What a growing drop means, and what to do. The names are those of the metric ferry_datagrams_total.
const advice: Record<string, string> = {
  signature: "Not the relay's protocol: scanners, or a flood. Harmless below the machine's limit; block the prefix at the router if the kernel drops.",
  short: "Not the relay's protocol: scanners, or a flood. Harmless below the machine's limit; block the prefix at the router if the kernel drops.",
  version: "Another version of the protocol: an old or foreign client.",
  mac: "BINDs with wrong signatures: a broken client, or an attacker that tries keys. It costs a hash for each; under load they are limited by prefix.",
  seal: "Connection data that this relay did not issue: clients of another relay or of an earlier run, or a flood.",
  nonce: "Replayed BINDs.",
  endpoint_held: "BINDs from the address of a player that is active: forged sources, or a NAT that reuses ports too soon.",
  forbidden: "Sources that the relay refuses, such as its own addresses: forged.",
  private: "Sources of private networks: players behind a container's proxy or a NAT that loops back, for whom allow_private_sources is, or forged.",
  unvalidated: "More than may go to an address that has not shown that it receives: an attempt at amplification, or players that play from another network than that of their API call. Let a backend name their address, use dtls, or raise unvalidated_bytes and unvalidated_ratio.",
  place_held: "CONNECT_REQUESTs to a full host where an earlier allocation of the same player is still heard. The player gets that place two seconds after it falls silent; if this goes on, two machines use one player's token.",
  host_unbound: "CONNECT_REQUESTs to a host that is not bound: it has just allocated, or its game is blocked or gone. Players repeat them each second.",
  receiver_size: "Messages larger than the transport of their receiver carries. Set maxMessageSize at the senders: 1363 on udp, 1377 on ws.",
  recovering: "Of matches that may still come back after the restart. It ends with recover_for.",
  load: "The relay is under load and limits each prefix. Honest players repeat and get in; add relays, or block the prefixes below.",
  busy: "Control was too busy for these. Clients repeat them within a second.",
  rate: "Above the quota of a player or host. A cheater, or a limit that is too low for the game (joiner_datagrams and the like).",
  muted: "Senders that did not react to three errors.",
  budget: "Errors that were not sent, so that the relay is no reflector.",
}

/** prefixOf is the network of an address: /24 of IPv4, /56 of IPv6. */
export function prefixOf(endpoint: string): string {
  const v6 = /^\[([0-9a-f:.]+)(%[^\]]*)?\]/i.exec(endpoint)
  if (!v6) return endpoint.replace(/\.\d+:\d+$/, ".0/24")
  const [head = "", tail] = v6[1]!.split("::")
  const groups = head ? head.split(":") : []
  const rest = tail === undefined ? [] : tail ? tail.split(":") : []
  const all = tail === undefined ? groups : [...groups, ...Array(Math.max(0, 8 - groups.length - rest.length)).fill("0"), ...rest]
  const fourth = parseInt(all[3] ?? "0", 16) & 0xff00
  return `${all.slice(0, 3).map(g => parseInt(g || "0", 16).toString(16)).join(":")}:${fourth.toString(16)}::/56`
}

export function AttackPage({ live }: { live: Live }) {
  const { samples } = live
  const { value, error } = usePoll("refusals", 2000, () => get<Refusal[]>("/console/data/refusals"))
  const now = samples[samples.length - 1]
  if (!now) return <p>No figures have arrived yet.</p>
  if (!now.stats) return <p>This process has no relay. Look at a relay's own console.</p>
  const minute = samples.slice(-60)
  const earlier = samples.slice(0, -60)
  const rows = Object.keys(now.stats.drops).map(reason => {
    const count = (s: { stats?: { drops: Record<string, number> } }) => s.stats?.drops[reason] ?? 0
    return { reason, now: rate(minute, 60, count), before: rate(earlier, 300, count) }
  }).filter(r => r.now > 0 || r.before > 0).sort((a, b) => b.now - a.now)
  const kernel = rate(minute, 60, s => s.stats!.kernel_drops)
  const prefixes = new Map<string, { count: number; reasons: Set<string>; last: string }>()
  for (const r of value ?? []) {
    if (!r.endpoint) continue
    const key = prefixOf(r.endpoint)
    const p = prefixes.get(key) ?? { count: 0, reasons: new Set<string>(), last: r.last }
    p.count += r.count
    p.reasons.add(r.reason)
    if (r.last > p.last) p.last = r.last
    prefixes.set(key, p)
  }
  const growing = rows.filter(r => r.now > 10 && r.now > 3 * r.before)
  return <>
    <p class="because" role="status">{
      kernel > 0 ? `The kernel drops ${short(kernel)} datagrams a second before the relay sees them: the machine is at its limit.`
        : now.stats.workers_under_load > 0 ? `${now.stats.workers_under_load} workers are under load: each source prefix is limited.`
          : growing.length > 0 ? `Drops grow: ${growing.map(r => r.reason).join(", ")}.`
            : "Nothing unusual: no drops grow, and no limit is in force."}</p>
    <Plot title="Dropped per second" samples={samples} format={short} series={rows.slice(0, 6).map(r => ({ label: r.reason, values: rates(samples, s => s.stats?.drops[r.reason] ?? 0) }))} />
    {rows.length > 0 && <section>
      <h2>Drops of the last minute</h2>
      <Table label="Drops of the last minute" head={<><th>Reason</th><th class="n">Now, per second</th><th class="n">Before, per second</th><th>What it means, and what to do</th></>}>
        {rows.map(r => <tr key={r.reason}><td>{r.reason}</td><td class="n">{short(r.now)}</td><td class="n">{short(r.before)}</td><td class="text">{advice[r.reason] ?? "See docs/operating.md for what it means."}</td></tr>)}
      </Table>
    </section>}
    <Failure error={error} />
    {prefixes.size > 0 && <section>
      <h2>Refused messages by source prefix</h2>
      <p class="soft">Of messages that name an allocation of this relay, at most five a second and prefix. Sources of plain UDP may be forged.</p>
      <Table label="Refused messages by source prefix" head={<><th>Prefix</th><th class="n">Refused</th><th>Last</th><th>Reasons</th><th>Action</th></>}>
        {[...prefixes].sort((a, b) => b[1].count - a[1].count).slice(0, 50).map(([name, p]) => <tr key={name}><td>{name}</td><td class="n">{number(p.count)}</td><td>{clock(p.last)}</td><td class="text">{[...p.reasons].join("; ")}</td>
          <td><Action label="Ban" ask={`Ban ${name} for a day? Honest players of this network are banned too.`} act={() => ban({ prefix: name })} /></td></tr>)}
      </Table>
    </section>}
    {value && value.length > 0 && <section>
      <h2>Newest refusals</h2>
      <Table label="Newest refusals" head={<><th>Last</th><th>Allocation</th><th>Message</th><th>From</th><th class="n">Count</th><th>Reason</th></>}>
        {value.slice(0, 50).map((r, i) => <tr key={i}><td>{clock(r.last)}</td><td><a href={matchLink(r.id)}><ShortID id={r.id} /></a></td><td>{r.what}</td><td>{r.endpoint}</td><td class="n">{number(r.count)}</td><td class="text">{r.reason}</td></tr>)}
      </Table>
    </section>}
  </>
}
