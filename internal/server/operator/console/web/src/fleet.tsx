import { call, get, type Node, type Nodes } from "./api"
import { bits, counted, moment, number, since } from "./format"
import { usePoll } from "./live"
import { Action, Failure, ShortID, State, StoreAway, Table } from "./parts"

/** hasEnded: the process does not run, as far as the store knows. */
const hasEnded = (n: Node) => n.state === "dead" || n.state === "stopped"

function stateText(n: Node): string {
  if (n.state === "draining") return `draining, ${number(n.allocations)} left`
  return (hasEnded(n) || n.state === "unknown") && n.last_heartbeat ? `${n.state} since ${moment(n.last_heartbeat)}` : n.state
}

export function FleetPage() {
  const { value, error, again } = usePoll("nodes", 2000, () => get<Nodes>("/nodes"))
  const nodes = value?.nodes ?? []
  const relays = nodes.filter(n => n.role !== "api")
  const sum = (f: (n: Node) => number) => relays.reduce((a, n) => a + f(n), 0)
  return <>
    <Failure error={error} />
    <StoreAway since={value?.store_away_since} so="the states of other processes are not known, and there may be more of them. Running matches are not affected." />
    {value && <p class="soft" role="status">{counted(relays.length, "relay")}, {counted(sum(n => n.allocations), "allocation")}, {counted(sum(n => n.bound), "player")}, {counted(sum(n => n.links), "link")}</p>}
    {value && <Table label="Processes" head={<>
      <th>Process</th><th>Role</th><th>Region</th><th>State</th><th class="n">Allocations</th><th class="n">Players</th><th class="n">Links</th>
      <th class="n">Seats</th><th class="n">Traffic</th><th>Version</th><th class="n">Up</th><th>Address</th><th>Action</th></>}>
      {nodes.map(n => <tr key={n.role + n.id + n.api}>
        <td>{n.role === "api" ? n.id : <ShortID id={n.id} />}</td><td>{n.role}</td><td>{n.region}</td>
        <td><State state={n.state} text={stateText(n)} /></td>
        <td class="n">{number(n.allocations)}</td><td class="n">{number(n.bound)}</td><td class="n">{number(n.links)}</td>
        <td class="n">{number(n.seats)}{n.max_seats > 0 && ` of ${number(n.max_seats)}`}</td>
        <td class="n">{n.traffic && !hasEnded(n) && bits(n.traffic.bytes_out_per_second)}</td>
        <td>{n.version}{n.lacks && ` (lacks ${n.lacks.join(", ")})`}</td><td class="n">{hasEnded(n) ? "" : since(n.since)}</td><td>{n.udp?.join(" ")}</td>
        <td>{n.role !== "api" && !hasEnded(n) && (n.state === "draining"
          ? <Action label="Undrain" ask={`Let ${n.id.slice(0, 8)} take new matches again?`} done={again}
            act={async () => { await call("DELETE", `/nodes/${n.id}/drain`); return "takes new matches" }} />
          : <Action label="Drain" ask={`Let ${n.id.slice(0, 8)} take no new matches, and end when its matches have?`} done={again}
            act={async () => { await call("POST", `/nodes/${n.id}/drain`); return "drains" }} />)}</td>
      </tr>)}
    </Table>}
  </>
}
