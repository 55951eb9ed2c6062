// What canaries have seen: the relay as players see it.
import { get, loginRequired, plain } from "./api"
import type { Canaries, Canary, CanaryTransport } from "./types"
import { age, counted, day, ms, number, since } from "./format"
import { usePoll } from "./live"
import { Failure, State, Table } from "./parts"

export const useCanaries = () => usePoll("canaries", 5000, () => get<Canaries>("/canaries"))

/** isSilent: the canary has missed reports. A round takes up to its interval and a minute for a transport. */
const isSilent = (c: Canary) => Date.now() - Date.parse(c.reported) > 1000 * (3 * c.interval_seconds + 60 * (c.transports?.length ?? 0))

const rate = (matches: number, failed: number) => {
  const percent = 100 * (1 - failed / matches)
  return matches === 0 ? "–" : `${failed > 0 && percent > 99.9 ? "99.9" : percent.toFixed(failed === 0 ? 0 : 1)} %`
}

const until = (seconds?: number) => seconds ? ms(1000 * seconds) : "–"

function stateOf(c: Canary, t: CanaryTransport) {
  if (isSilent(c)) return <State state="note" text={`no report since ${day(c.reported)}`} />
  if (!t.failing_since) return <State state="ok" text="ok" />
  return <><State state="problem" text={`fails since ${day(t.failing_since)}`} /> {plain(t.failure ?? "")}</>
}

/** canarySum is what all canaries that report have seen together. */
export function canarySum(all: Canary[]) {
  const seen = all.filter(c => !isSilent(c)).flatMap(c => c.transports ?? [])
  const matches = seen.reduce((a, t) => a + t.matches, 0), failed = seen.reduce((a, t) => a + t.failed, 0)
  const p99 = Math.max(0, ...seen.map(t => t.until_in_p99_seconds ?? 0))
  return { success: rate(matches, failed), untilIn: p99 ? `p99 ${until(p99)} until in` : "", fails: seen.some(t => t.failing_since) }
}

/** canaryProblems are those of canaries, for the list of what is wrong. */
export function canaryProblems(all: Canary[]) {
  return all.flatMap(c => {
    const to = "#/fleet", name = `canary ${c.name}`
    if (isSilent(c)) return [{ key: name, state: "note", name, to, since: c.reported, text: "it does not report any more: look at its process" }]
    const fails = (c.transports ?? []).filter(t => t.failing_since)
    const first = fails[0]
    return first ? [{
      key: name, state: "problem", name, to, since: fails.map(t => t.failing_since!).sort()[0],
      text: `no match over ${fails.map(t => t.transport).join(", ")}${first.region ? ` in ${first.region}` : ""} can be played from there: ${plain(first.failure ?? "")}`,
    }] : []
  })
}

/** Canaries shows a row for each transport of each canary. */
export function Canaries({ all, error }: { all?: Canary[]; error?: Error }) {
  return <section aria-label="Canaries">
    <h2>Seen by canaries</h2>
    <Failure error={error} />
    {all && (all.length === 0 ? <p>No canary reports here. One plays a small match every 10 s, as players do; run it on another machine,
      with the address of the API, and of this page: <code>ferry ping URL --every 10s --report {location.origin}{loginRequired && " --report-token-file FILE"}</code></p> :
      <Table label="Canaries" head={<><th>Canary</th><th>Region</th><th>Transport</th><th>State</th><th class="n">Success</th><th class="n">Failed</th>
        <th class="n">Until in, median</th><th class="n">p99</th><th class="n">Over</th><th class="n">Reported</th></>}>
        {all.flatMap(c => (c.transports ?? []).map(t => <tr key={c.name + t.transport}>
          <td class="name">{c.name}</td><td>{t.region}</td><td>{t.transport}</td><td class="text">{stateOf(c, t)}</td>
          <td class="n">{rate(t.matches, t.failed)}</td><td class="n" title={counted(t.matches, "match", "matches")}>{number(t.failed)} of {number(t.matches)}</td>
          <td class="n">{until(t.until_in_median_seconds)}</td><td class="n">{until(t.until_in_p99_seconds)}</td>
          <td class="n">{age((Date.parse(c.reported) - Date.parse(c.since)) / 1000)}</td><td class="n">{since(c.reported)} ago</td>
        </tr>))}
      </Table>)}
  </section>
}
