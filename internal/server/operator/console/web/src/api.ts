// The calls to the admin pages, and the types of their answers.

export interface Stats {
  allocations: number; bound: number; links: number; seats: number; draining: boolean
  datagrams_in: number; bytes_in: number; datagrams_out: number; bytes_out: number
  send_failed: number; kernel_drops: number
  outcomes: Record<string, number>; drops: Record<string, number>
  workers: number[]; intakes: number[]; fast_path: number; workers_under_load: number
}

export interface Condition { name: string; state: "ok" | "note" | "problem"; text: string; since?: string; page?: string }

export interface Sample {
  at: string; title: string; mode: string; since: string
  host: string; relay?: string; region?: string
  stats?: Stats
  worker_cpu?: number[]
  rtt?: { last: number; p50: number; p99: number; lost: number }
  load?: Load
  conditions: Condition[]
}

/** Load is of a relay, or of several. */
export interface Load {
  at: string; datagrams_in: number; datagrams_out: number; bytes_in: number; bytes_out: number; drops: number; p99: number
  allocations: number; matches: number; players: number; links: number; seats: number; relays: number
}
export interface Day { points: Load[]; changes: Condition[] }

export interface Node {
  id: string; role: string; region: string; version: string; state: string; udp: string[] | null; api: string; since?: string
  last_heartbeat?: string // of another process
  allocations: number; bound: number; links: number; matches?: number; seats: number; max_seats: number
  lacks?: string[]; load?: number // 0 to 1
  traffic?: Traffic // of another relay
  summary?: { host: string; load: Load; conditions?: Condition[] }
}
export interface Fleet { at: string; nodes: Node[] | null; error?: string; store_away_since?: string; stores_away?: { region: string; since: string }[] }

/** Traffic is per second. */
export interface Traffic {
  datagrams_in_per_second: number; bytes_in_per_second: number; datagrams_out_per_second: number; bytes_out_per_second: number
  dropped_per_second: number
}


/** Missing is a relay whose part an answer lacks; without relay: relays that are not known. */
export interface Missing { relay?: string; region?: string; reason: string }

export interface Allocation {
  id: string; role: string; match: string; join_code?: string; player?: string; project?: string; environment?: string; tenant: string
  bound: boolean; transport?: string; endpoint?: string; recovered: boolean
  age_seconds: number; heard_seconds_ago: number; active_seconds_ago: number
  connections: number; max_connections?: number; datagrams_sent: number; bytes_sent: number; receiver_size_drops: number; large_messages: number
}

export interface Match { host: Allocation; relay?: string; datagrams_per_second: number; bytes_per_second: number }
export interface Matches { matches: Match[]; total: number; truncated?: boolean; missing?: Missing[] }

export interface WhyEvent { id?: string; relay?: string; what: string; reason?: string; peer?: string; endpoint?: string; first: string; last: string; count: number }
export interface Why {
  id: string; role?: string; join_code?: string; player?: string; known: boolean; because: string
  events: WhyEvent[] | null; players?: { id: string; because: string }[]
}

export interface ProjectTimeline { project: string; events: WhyEvent[]; missing?: Missing[] }

export interface Ban {
  id: string; player?: string; project?: string; environment?: string; prefix?: string; since: string; until: string; reason?: string
}

export interface ProjectUsage {
  project?: string; environment?: string; tenant?: string; others?: boolean
  allocations: number; hosts: number; players: number; player_seconds: number; datagrams: number; bytes: number
}

export interface Bans { bans: Ban[]; store_away_since?: string; not_known?: boolean }

export interface Usage { since: string; projects: ProjectUsage[]; missing?: Missing[] }

export interface PlayerCounts { allocations: number; live: number; player_seconds: number; datagrams: number; bytes: number }
export interface PlayerUsage extends PlayerCounts { player: string; digest: string; project: string; environment: string }
export interface PlayersUsage { since: string; players: PlayerUsage[]; others: PlayerCounts; missing?: Missing[] }

export interface CanaryTransport {
  transport: string; region?: string; matches: number; failed: number
  until_in_median_seconds?: number; until_in_p99_seconds?: number; failing_since?: string; failure?: string
}
export interface Canary { name: string; interval_seconds: number; since: string; reported: string; transports: CanaryTransport[] | null }

export interface Setting { key: string; value: string; source: string; reloads: boolean }
export interface Change { key: string; was: string; now: string }
export interface Reload { changed: Change[] | null; needs_restart: Change[] | null; notes: string[] | null }
export interface Line { time: string; level: string; text: string; attrs?: string }
export interface Refusal { id: string; what: string; reason: string; endpoint?: string; last: string; count: number }
export interface Login { required: boolean; signed_in: boolean; role?: string; person?: string; oidc?: string }

/** isViewer: the signed-in person may only look. */
export let isViewer = false
/** loginRequired: the pages ask for a token or a sign-in. */
export let loginRequired = false
export function setRole(l: Login) { isViewer = l.role === "viewer"; loginRequired = l.required }

/** Refused is a call that the server answered with an error. */
export class Refused extends Error {
  constructor(readonly status: number, text: string) { super(text) }
}

/** Away is the error of a call without an answer. The header of the page says so. */
export class Away extends Error {
  constructor() { super("the server does not answer") }
}

/** plain is the text of an error without the names of Go packages, which say nothing to an operator. */
export const plain = (text: string) => text.trim().replace(/(^|: )(?:(?:admin|alloc|api|app|ban|capture|cluster|config|console|engine|fleet|history|httpapi|placement|redisstore|rpc|state|statefile|table): )+/g, "$1")

/** signedOut is called when a call needs a sign-in. */
let signedOut = () => {}
export function onSignedOut(f: () => void) { signedOut = f }

async function request(method: string, path: string, body?: unknown): Promise<Response> {
  const r = await fetch(path, {
    method, credentials: "same-origin", cache: "no-store",
    ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }),
  }).catch(() => { throw new Away() })
  if (r.status === 401) signedOut()
  if (!r.ok) throw new Refused(r.status, plain(await r.text()))
  return r
}

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  return await (await request(method, path, body)).json() as T
}

/** save makes the browser save the answer of a POST as a file, and returns its size in bytes. */
export async function save(path: string, name: string): Promise<number> {
  const content = await (await request("POST", path)).blob()
  const link = document.createElement("a")
  link.href = URL.createObjectURL(content)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000)
  return content.size
}

/** checkSession finds out whether the session has ended, which a failed connection does not tell,
 *  and returns whether the server answers. */
export async function checkSession(): Promise<boolean> {
  const l = await get<Login>("/console/login").catch(() => undefined)
  if (l?.required && !l.signed_in) signedOut()
  return l !== undefined
}

export const get = <T>(path: string) => call<T>("GET", path)

/** onRelay is the path of a page of a relay; "" is this process. */
export const onRelay = (relay: string | undefined, path: string) => relay ? `/nodes/${encodeURIComponent(relay)}${path}` : path
