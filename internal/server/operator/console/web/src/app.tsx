import { render } from "preact"
import { useEffect, useRef, useState } from "preact/hooks"
import "uplot/dist/uPlot.min.css"
import "./style.css"
import { call, get, onSignedOut, setRole } from "./api"
import type { Login, Sample } from "./types"
import { AttackPage } from "./attack"
import { BansPage } from "./bans"
import { FleetPage, RelayPage } from "./fleet"
import { clock, since } from "./format"
import { useLive, type Live } from "./live"
import { AuditPage, LogPage } from "./log"
import { MatchesPage, MatchPage } from "./matches"
import { Overview } from "./overview"
import { Dialog } from "./parts"
import { useRoute } from "./route"
import { SettingsPage } from "./settings"
import { ProjectPage, UsagePage } from "./usage"

const pages = ["overview", "matches", "fleet", "usage", "attack", "bans", "settings", "log", "audit"]

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? "auto")
  useEffect(() => {
    localStorage.setItem("theme", theme)
    document.documentElement.dataset.theme = theme
  }, [theme])
  return <label>Theme <select value={theme} onChange={e => setTheme(e.currentTarget.value)}>
    {["auto", "light", "dark"].map(t => <option key={t}>{t}</option>)}
  </select></label>
}

function SignIn({ done, oidc }: { done: () => void; oidc?: string }) {
  const [token, setToken] = useState("")
  const [error, setError] = useState("")
  const submit = async (e: Event) => {
    e.preventDefault()
    try {
      await call("POST", "/console/login", { token })
      done()
    } catch (err) {
      setError((err as Error).message)
    }
  }
  return <main class="sign-in">
    <h1>Ferry</h1>
    {oidc && <p><a class="button" href="/console/oidc/begin">Sign in at {oidc}</a></p>}
    <form onSubmit={submit}>
      <label for="token">Token of admin_token_file</label>
      <input id="token" type="password" autocomplete="current-password" autofocus value={token} onInput={e => setToken(e.currentTarget.value)} />
      <button>Sign in</button>
      {error && <p class="failure" role="alert">{error}</p>}
    </form>
  </main>
}

/** placeOf names the process: several consoles in several tabs must differ. */
function placeOf(s: Sample): string {
  return [s.host, ...(s.relay ? [`relay ${s.relay.slice(0, 8)}`] : []), ...(s.region ? [`region ${s.region}`] : [])].join(" · ")
}

/** Connection says whether the values are live. */
function Connection({ live }: { live: Live }) {
  if (live.state === "live") return <span class="live" role="status">live</span>
  return <span class="live lost" role="status">{live.since ? "connection lost, trying again" : "connecting"}</span>
}

/** Lost says since when a page has old values, and why. */
function Lost({ live }: { live: Live }) {
  const when = `${clock(new Date(live.since).toISOString())} (${since(new Date(live.since).toISOString())} ago)`
  return <p class="lost-since" role="alert">{live.state === "full"
    ? `This window has had no values since ${when}: the server answers, and has as many windows of the console open as it serves. Close others.`
    : `The server has not answered since ${when}. What you see is from then; the page tries again every two seconds.`}</p>
}

// lostAfter is for how long without values, in ms, a page still counts as live: a restart takes less.
const lostAfter = 3000

function App() {
  const [login, setLogin] = useState<Login>()
  const [away, setAway] = useState(false)
  const [, tick] = useState(0)
  const { path: [route0 = "", ...rest], query } = useRoute()
  const check = () => { get<Login>("/console/login").then(l => { setAway(false); setLogin(l) }, () => { setAway(true); setTimeout(check, 2000) }) }
  useEffect(() => {
    onSignedOut(() => { setLogin(l => ({ required: true, signed_in: false, oidc: l?.oidc })) })
    check()
  }, [])
  const signedIn = login !== undefined && (login.signed_in || !login.required)
  const live = useLive(signedIn)
  const now = live.samples[live.samples.length - 1]
  const isAPI = now?.mode === "api"
  const route = route0 || (isAPI ? "fleet" : "overview")
  const name = route[0]!.toUpperCase() + route.slice(1)
  const lost = signedIn && live.since > 0 && live.state !== "live" && Date.now() - live.since > lostAfter
  useEffect(() => {
    if (live.state === "live" || !live.since) return
    const timer = setInterval(() => tick(n => n + 1), 1000)
    return () => clearInterval(timer)
  }, [live.state, live.since > 0])
  const place = now && [...(now.relay ? [now.relay.slice(0, 8)] : []), now.host, ...(now.region ? [now.region] : [])].join(" ")
  useEffect(() => { document.title = [...(lost ? ["(gone)"] : []), ...(place ? [place, "–"] : []), name, "–", "Ferry"].join(" ") }, [name, place, lost])
  const nav = useRef<HTMLElement>(null) // A narrow window scrolls it.
  useEffect(() => { nav.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }) }, [route, place])
  if (login) setRole(login)
  if (!login) return <main><p role="status">{away ? "The server does not answer. The page tries again every two seconds." : "Connecting…"}</p></main>
  if (!signedIn) return <SignIn done={check} oidc={login.oidc} />
  const signOut = async () => { setLogin(await call<Login>("DELETE", "/console/login")) }
  const order = isAPI ? ["fleet", ...pages.filter(p => p !== "fleet")] : pages
  return <>
    <header>
      <a class="skip" href="#main" onClick={e => { e.preventDefault(); document.getElementById("main")?.focus() }}>Skip to the page</a>
      <div class="title">
        <div class="program"><strong title={now?.title}>{now?.title ?? "ferry"}</strong> <span class="mode">{now?.mode}</span> <Connection live={live} /></div>
        {now && <div class="place" title={placeOf(now)}>{placeOf(now)}</div>}
      </div>
      <nav aria-label="Pages of the console" ref={nav}>
        {order.map(p => <a key={p} href={`#/${p}`} aria-current={p === route || p === "matches" && route === "match" || p === "usage" && route === "project" || p === "fleet" && route === "relay" ? "page" : undefined}>{p[0]!.toUpperCase() + p.slice(1)}</a>)}
      </nav>
      <div class="tools">{login.person && <span>{login.person}, {login.role}</span>}{login.required && <button title={login.person} onClick={signOut}>Sign out</button>}</div>
    </header>
    {lost && <Lost live={live} />}
    <main id="main" tabIndex={-1} class={lost ? "stale" : ""}>
      <h1>{name}</h1>
      {route === "overview" ? <Overview live={live} query={query} />
        : route === "matches" ? <MatchesPage query={query} />
        : route === "match" ? <MatchPage id={rest[0] ?? ""} relay={rest[1]} />
        : route === "fleet" ? <FleetPage live={live} query={query} />
        : route === "relay" ? <RelayPage id={rest[0] ?? ""} />
        : route === "usage" ? <UsagePage />
        : route === "project" ? <ProjectPage name={rest[0] ?? ""} query={query} />
        : route === "attack" ? <AttackPage live={live} />
        : route === "bans" ? <BansPage query={query} />
        : route === "settings" ? <SettingsPage query={query} />
        : route === "log" ? <LogPage query={query} />
        : route === "audit" ? <AuditPage />
        : <p>There is no such page.</p>}
    </main>
    <Dialog />
    <footer><a href="/docs/">Documentation</a> · <a href="/pages">Pages for programs</a> · <Theme /></footer>
  </>
}

render(<App />, document.getElementById("app")!)
