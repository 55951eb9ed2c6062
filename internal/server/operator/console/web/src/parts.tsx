// Parts that several pages use.
import type { ComponentChildren } from "preact"
import { isViewer, type Missing } from "./api"
import { moment } from "./format"
import { useState } from "preact/hooks"

export function Failure({ error }: { error?: Error }) {
  return error ? <p class="failure" role="alert">{error.message}</p> : null
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

/** State shows a state by a word and a sign, not by colour only. */
export function State({ state, text }: { state: string; text?: string }) {
  const kind = state === "ok" || state === "ready" ? "ok" : state === "note" || state === "draining" ? "note" : "problem"
  const sign = { ok: "✓", note: "•", problem: "!" }[kind]
  return <span class={`state state-${kind}`}><span aria-hidden="true">{sign}</span> {text ?? state}</span>
}

/** Action is a button that asks again before it acts, and shows what came of it. */
export function Action({ label, ask, act, done }: { label: string; ask: string; act: () => Promise<string>; done?: () => void }) {
  const [phase, setPhase] = useState<"idle" | "asking" | "busy">("idle")
  const [result, setResult] = useState("")
  const run = async () => {
    setPhase("busy")
    try {
      setResult(await act())
      done?.()
    } catch (e) {
      setResult((e as Error).message)
    }
    setPhase("idle")
  }
  if (phase === "asking") {
    return <span class="action" role="group" aria-label={ask}>
      <span>{ask}</span>
      <button class="danger" autofocus onClick={run}>Yes, {label.toLowerCase()}</button>
      <button onClick={() => setPhase("idle")}>Cancel</button>
    </span>
  }
  return <span class="action">
    <button disabled={phase === "busy" || isViewer} title={isViewer ? "a viewer may only look" : undefined} onClick={() => { setResult(""); setPhase("asking") }}>{label}</button>
    {result && <span role="status">{result}</span>}
  </span>
}

export function Tile({ label, value, more }: { label: string; value: string; more?: string }) {
  return <div class="tile"><div class="label">{label}</div><div class="value">{value}</div>{more && <div class="more">{more}</div>}</div>
}

/** Table scrolls sideways in a narrow window. */
export function Table({ label, head, children }: { label: string; head: ComponentChildren; children: ComponentChildren }) {
  return <div class="scroll" tabIndex={0} role="region" aria-label={label}>
    <table><thead><tr>{head}</tr></thead><tbody>{children}</tbody></table>
  </div>
}

/** ShortID shows the begin of an id; all of it is in the title and when copied from a link. */
export function ShortID({ id }: { id: string }) {
  return <code title={id}>{id.slice(0, 8)}</code>
}
