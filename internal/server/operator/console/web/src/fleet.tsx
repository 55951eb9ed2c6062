import { call, get, type Node } from "./api"
import { counted, number, since } from "./format"
import { usePoll } from "./live"
import { Action, Failure, ShortID, State, Table } from "./parts"

export function FleetPage() {
  const { value, error, again } = usePoll("nodes", 2000, () => get<{ nodes: Node[] }>("/nodes"))
  const nodes = value?.nodes ?? []
  const relays = nodes.filter(n => n.role !== "api")
  const sum = (f: (n: Node) => number) => relays.reduce((a, n) => a + f(n), 0)
  return <>
    <Failure error={error} />
    {value && <p class="soft" role="status">{counted(relays.length, "relay")}, {counted(sum(n => n.allocations), "allocation")}, {counted(sum(n => n.bound), "player")}, {counted(sum(n => n.links), "link")}</p>}
    {value && <Table label="Processes" head={<>
      <th>Process</th><th>Role</th><th>Region</th><th>State</th><th class="n">Allocations</th><th class="n">Players</th><th class="n">Links</th>
      <th class="n">Seats</th><th>Version</th><th class="n">Up</th><th>Address</th><th>Action</th></>}>
      {nodes.map(n => <tr key={n.role + n.id}>
        <td>{n.role === "api" ? n.id : <ShortID id={n.id} />}</td><td>{n.role}</td><td>{n.region}</td>
        <td><State state={n.state} text={n.state === "draining" ? `draining, ${number(n.allocations)} left` : n.state} /></td>
        <td class="n">{number(n.allocations)}</td><td class="n">{number(n.bound)}</td><td class="n">{number(n.links)}</td>
        <td class="n">{number(n.seats)}{n.max_seats > 0 && ` of ${number(n.max_seats)}`}</td>
        <td>{n.version}</td><td class="n">{since(n.since)}</td><td>{n.udp?.join(" ")}</td>
        <td>{n.role !== "api" && (n.state === "draining"
          ? <Action label="Undrain" ask={`Let ${n.id.slice(0, 8)} take new matches again?`} done={again}
            act={async () => { await call("DELETE", `/nodes/${n.id}/drain`); return "takes new matches" }} />
          : <Action label="Drain" ask={`Let ${n.id.slice(0, 8)} take no new matches, and end when its matches have?`} done={again}
            act={async () => { await call("POST", `/nodes/${n.id}/drain`); return "drains" }} />)}</td>
      </tr>)}
    </Table>}
  </>
}
