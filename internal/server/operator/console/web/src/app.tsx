import { render } from "preact"
import { useEffect, useState } from "preact/hooks"
import "uplot/dist/uPlot.min.css"
import "./style.css"
import { call, get, onSignedOut, setRole, type Login } from "./api"
import { AttackPage } from "./attack"
import { BansPage } from "./bans"
import { FleetPage } from "./fleet"
import { useLive } from "./live"
import { AuditPage, LogPage } from "./log"
import { MatchesPage, MatchPage } from "./matches"
import { Overview } from "./overview"
import { SettingsPage } from "./settings"
import { ProjectPage, UsagePage } from "./usage"

const pages = ["overview", "matches", "fleet", "usage", "attack", "bans", "settings", "log", "audit"]

function useRoute(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent)
  const [route, setRoute] = useState(read)
  useEffect(() => {
    const f = () => setRoute(read())
    addEventListener("hashchange", f)
    return () => removeEventListener("hashchange", f)
  }, [])
  return route
}

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? "auto")
  useEffect(() => {
    localStorage.setItem("theme", theme)
    document.documentElement.dataset.theme = theme
  }, [theme])
  return <label class="theme">Theme <select value={theme} onChange={e => setTheme(e.currentTarget.value)}>
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

function App() {
  const [login, setLogin] = useState<Login>()
  const [route0 = "", ...rest] = useRoute()
  const check = () => { get<Login>("/console/login").then(setLogin, () => setTimeout(check, 2000)) }
  useEffect(() => {
    onSignedOut(() => { setLogin(l => ({ required: true, signed_in: false, oidc: l?.oidc })) })
    check()
  }, [])
  const signedIn = login !== undefined && (login.signed_in || !login.required)
  const live = useLive(signedIn)
  const now = live.samples[live.samples.length - 1]
  const route = route0 || (now?.mode === "api" ? "fleet" : "overview")
  useEffect(() => { document.title = `${route} – Ferry` }, [route])
  if (login) setRole(login)
  if (!login) return <main><p>Connecting…</p></main>
  if (!signedIn) return <SignIn done={check} oidc={login.oidc} />
  const signOut = async () => { setLogin(await call<Login>("DELETE", "/console/login")) }
  return <>
    <header>
      <a class="skip" href="#main" onClick={e => { e.preventDefault(); document.getElementById("main")?.focus() }}>Skip to the page</a>
      <div class="title"><strong>{now?.title ?? "ferry"}</strong> <span class="mode">{now?.mode}</span>
        <span class={live.connected ? "live" : "live lost"} role="status">{live.connected ? "live" : "connection lost, trying again"}</span></div>
      <nav aria-label="Pages of the console">
        {pages.map(p => <a key={p} href={`#/${p}`} aria-current={p === route || p === "matches" && route === "match" || p === "usage" && route === "project" ? "page" : undefined}>{p[0]!.toUpperCase() + p.slice(1)}</a>)}
      </nav>
      <div class="tools"><Theme />{login.person && <span>{login.person}, {login.role}</span>}{login.required && <button onClick={signOut}>Sign out</button>}</div>
    </header>
    <main id="main" tabIndex={-1}>
      <h1>{route[0]!.toUpperCase() + route.slice(1)}</h1>
      {route === "overview" ? <Overview live={live} />
        : route === "matches" ? <MatchesPage />
        : route === "match" ? <MatchPage id={rest[0] ?? ""} relay={rest[1]} />
        : route === "fleet" ? <FleetPage />
        : route === "usage" ? <UsagePage />
        : route === "project" ? <ProjectPage name={rest[0] ?? ""} />
        : route === "attack" ? <AttackPage live={live} />
        : route === "bans" ? <BansPage />
        : route === "settings" ? <SettingsPage />
        : route === "log" ? <LogPage />
        : route === "audit" ? <AuditPage />
        : <p>There is no such page.</p>}
    </main>
    <footer><a href="/docs/">Documentation</a> · <a href="/pages">Pages for programs</a></footer>
  </>
}

render(<App />, document.getElementById("app")!)
