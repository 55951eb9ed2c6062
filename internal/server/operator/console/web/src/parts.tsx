// Parts that several pages use.
import type { ComponentChildren, FunctionComponent } from "preact"
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks"
import { Away, isViewer } from "./api"
import type { Missing } from "./types"
import { moment } from "./format"

/** Failure shows an error, but not that the server is away: the header says that. */
export function Failure({ error }: { error?: Error }) {
  return error && !(error instanceof Away) ? <p class="failure" role="alert">{error.message}</p> : null
}

/** StoreAway says since when the store does not answer, and what that means for the page. */
export function StoreAway({ since, so }: { since?: string; so: string }) {
  return since ? <p class="failure" role="alert">The store has not answered since {moment(since)}: {so}</p> : null
}

/** MissingRelays names the relays whose part a page lacks. */
export function MissingRelays({ what, missing }: { what: string; missing?: Missing[] }) {
  return missing?.length ? <ul class="failure" role="alert">{missing.map(m =>
    <li key={m.relay}>{what} of {m.relay ? `relay ${m.relay}` : "a part of the fleet"}{m.region && ` (${m.region})`} is missing: {m.reason}</li>)}</ul> : null
}

/** kindOf is what a state of a process or of a condition amounts to. */
export const kindOf = (state: string) => state === "ok" || state === "ready" ? "ok" : ["problem", "dead", "not ready"].includes(state) ? "problem" : "note"

/** State shows a state by a word and a sign, not by colour only. */
export function State({ state, text }: { state: string; text?: string }) {
  const kind = kindOf(state)
  const sign = { ok: "✓", note: "•", problem: "!" }[kind]
  return <span class={`state state-${kind}`}><span aria-hidden="true">{sign}</span> {text ?? state}</span>
}

interface Question {
  label: string // of the button that acts
  ask: string | FunctionComponent
  danger?: boolean
  act: () => Promise<string>
  done: (result: string) => void
}

let question: (q: Question) => void = () => {}

/** askFirst asks before an action that has no button of its own. */
export const askFirst = (q: Question) => question(q)

/** Dialog asks before an action. There is one on the page, outside of tables whose rows come and go. */
export function Dialog() {
  const [asked, setAsked] = useState<Question>()
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState("")
  const box = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    question = q => { setError(""); setAsked(q) }
    return () => { question = () => {} }
  }, [])
  const shown = useRef<Question>(undefined) // The event of its end may come when the next question is asked already.
  useEffect(() => {
    shown.current = asked
    if (asked && !box.current?.open) box.current?.showModal()
  }, [asked])
  const run = async (e: Event) => {
    e.preventDefault()
    setBusy(true)
    setError("")
    try {
      const result = await asked!.act()
      box.current?.close()
      asked!.done(result)
    } catch (err) {
      setError((err as Error).message)
    }
    setBusy(false)
  }
  const Body = typeof asked?.ask === "function" ? asked.ask : undefined
  return <dialog ref={box} aria-label="Confirm" onClose={() => { if (!box.current?.open) setAsked(q => q === shown.current ? undefined : q) }}>
    {asked && <form onSubmit={run}>
      {Body ? <Body /> : <p>{asked.ask as string}</p>}
      {error && <p class="failure" role="alert">{error}</p>}
      <p class="actions">
        <button class={asked.danger ? "danger" : ""} disabled={busy} autofocus={!asked.danger}>Yes, {asked.label.toLowerCase()}</button>
        <button type="button" autofocus={asked.danger} onClick={() => box.current?.close()}>Cancel</button>
      </p>
    </form>}
  </dialog>
}

/** Action is a button that asks again before it acts, and shows what came of it. One that takes
 *  something from players is a danger. */
export function Action({ label, ask, act, done, danger }: {
  label: string; ask: Question["ask"]; act: () => Promise<string>; done?: () => void; danger?: boolean
}) {
  const [result, setResult] = useState("")
  return <span class="action">
    <button type="button" class={danger ? "danger" : ""} disabled={isViewer} title={isViewer ? "a viewer may only look" : undefined}
      onClick={() => { setResult(""); question({ label, ask, act, danger, done: r => { setResult(r); done?.() } }) }}>{label}</button>
    {result && <span role="status">{result}</span>}
  </span>
}

/** Tile shows a figure, and leads to the page that explains it. */
export function Tile({ label, value, more, to, bad }: { label: string; value: string; more?: string; to: string; bad?: boolean }) {
  return <a class={bad ? "tile bad" : "tile"} href={to}><span class="label">{label}</span> <span class="value">{value}</span> {more && <span class="more">{more}</span>}</a>
}

/** Table scrolls sideways if it is too wide, and shows rows as lists in a narrow window. The focus stays at its link or button when rows move,
 *  and goes to the table when its row is gone. */
export function Table({ label, head, children }: { label: string; head: ComponentChildren; children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null)
  const before = document.activeElement as HTMLElement | null
  const held = before && before !== box.current && box.current?.contains(before) ? before : undefined
  useLayoutEffect(() => {
    const heads = [...box.current?.querySelectorAll("th") ?? []].map(h => h.textContent!.replace(/ [↑↓]?$/, ""))
    for (const row of box.current?.querySelectorAll<HTMLTableRowElement>("tbody tr") ?? []) { // A narrow window shows a row as a list.
      heads.forEach((label, i) => { const cell = row.cells[i]; if (cell && cell.dataset.label !== label) cell.dataset.label = label })
    }
    if (held && document.activeElement !== held) (held.isConnected ? held : box.current)?.focus({ preventScroll: true })
  })
  return <div class="scroll" tabIndex={0} role="region" aria-label={label} ref={box}>
    <table><thead><tr>{head}</tr></thead><tbody>{children}</tbody></table>
  </div>
}

/** HeadButton is the head of a column by which one can sort. */
export function HeadButton({ name, label, sort, order, set, text }: {
  name: string; label: string; sort: string; order: string; set: (sort: string, order: string) => void; text?: boolean
}) {
  const active = sort === name
  return <th class={text ? "" : "n"} aria-sort={active ? (order === "asc" ? "ascending" : "descending") : "none"}>
    <button type="button" class="head" onClick={() => set(name, active && order === "desc" ? "asc" : "desc")}>
      {label} <span aria-hidden="true">{active ? (order === "asc" ? "↑" : "↓") : ""}</span>
    </button>
  </th>
}

/** ShortID shows the begin of an id; all of it is in the title and when copied from a link. */
export function ShortID({ id }: { id: string }) {
  return <code title={id}>{id.slice(0, 8)}</code>
}
