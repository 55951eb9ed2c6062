// The last 24 hours, which the process keeps in memory.
import { get } from "./api"
import type { Day, Load } from "./types"
import { bits, exact, ms, short } from "./format"
import { usePoll } from "./live"
import { Failure, State, Table } from "./parts"
import { Plot } from "./plot"
import { setQuery } from "./route"

/** Over chooses between the last five minutes and the day. */
export function Over({ day }: { day: boolean }) {
  return <p class="over" role="group" aria-label="Time of the plots">
    {([["", "Five minutes"], ["day", "A day"]] as const).map(([over, text]) =>
      <button type="button" key={over} aria-pressed={day === (over === "day")} onClick={() => setQuery({ over })}>{text}</button>)}
  </p>
}

const line = (label: string, points: Load[], f: (l: Load) => number | null) => ({ label, values: points.map(f) })

/** LoadPlots are of the loads of a relay or of a fleet. */
export function LoadPlots({ points, over }: { points: Load[]; over?: string }) {
  return <div class="plots">
    <Plot title="Traffic" samples={points} over={over} format={bits} series={[line("in", points, l => l.bytes_in), line("out", points, l => l.bytes_out)]} />
    <Plot title="Datagrams per second" samples={points} over={over} format={short} series={[line("in", points, l => l.datagrams_in), line("out", points, l => l.datagrams_out)]} />
    <Plot title="Matches, players and seats" samples={points} over={over} format={short} series={[
      line("matches", points, l => l.matches), line("players", points, l => l.players), line("seats", points, l => l.seats)]} />
    <Plot title="Dropped per second" samples={points} over={over} format={short} series={[line("all reasons", points, l => l.drops)]} />
    <Plot title="Round trip, p99" samples={points} over={over} format={ms} series={[line("p99", points, l => l.p99 || null)]} />
  </div>
}

/** DayView shows the day and what came and went. */
export function DayView() {
  const { value, error } = usePoll("day", 30_000, () => get<Day>("/console/data/day"))
  if (!value) return <Failure error={error} />
  const over = "the last day"
  return <>
    <Failure error={error} />
    {value.points.length < 2 ? <p>A point is kept each minute, for a day, since the start of this process. There are none yet to draw.</p> : <LoadPlots points={value.points} over={over} />}
    <section>
      <h2>What came and went</h2>
      {value.changes.length === 0 ? <p>Nothing since the start of this process.</p> :
        <Table label="What came and went" head={<><th>Time</th><th>State</th><th>What</th></>}>
          {[...value.changes].reverse().map(c => <tr key={c.name + c.since}><td>{exact(c.since!)}</td><td><State state={c.state} text={c.name} /></td><td class="text">{c.text}</td></tr>)}
        </Table>}
    </section>
  </>
}
