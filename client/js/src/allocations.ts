// The calls of the Allocations API, which Ferry describes at /openapi.yaml.

import { type Bytes, ID_SIZE, idText, KEY_SIZE, MAX_CONNECTION_DATA } from "./messages.ts"

/** One way to reach a relay. */
export interface Endpoint { connectionType: string; network: string; reliable: boolean; secure: boolean; host: string; port: number }

/** A player's right to use a relay. Treat it as a secret: the key authenticates the player. */
export interface Allocation {
  /** The id as messages and the API have it, the text of a UUID. */
  id: string
  key: Bytes
  connectionData: Bytes
  /** What admits a joiner to its host. A host has none. */
  hostConnectionData?: Bytes
  region: string
  endpoints: Endpoint[]
}

/** A location of relays. */
export interface Region {
  id: string
  description: string
  /** The WebSocket of a relay there. measure needs it. */
  webSocketUrl?: string
}

/** What a player has measured of a region: the mean round trip in ms, undefined without an answer, and the share of probes without one. */
export interface Measurement { region: string; rtt: number | undefined; loss?: number }

/** A call of the API that was refused or got no valid answer. */
export class ApiError extends Error {
  override readonly name = "ApiError"
  /** The HTTP status; 0 without an answer. */
  readonly status: number
  /** The number of the problem, such as 15009 for an unknown join code; 15998 without an answer. */
  readonly code: number
  readonly title: string
  readonly detail: string
  /** The members of the request that are invalid, and why. */
  readonly details: readonly { key: string; value: string }[]
  /** Seconds to wait before another attempt, if the server names a time. */
  readonly retryAfter: number | undefined

  constructor(status: number, code: number, title: string, detail: string, more: { details?: { key: string; value: string }[]; retryAfter?: number; cause?: unknown } = {}) {
    const details = more.details ?? []
    super(`${title}: ${detail}${details.map(d => `; ${d.key}: ${d.value}`).join("")} (status ${status}, code ${code})`, { cause: more.cause })
    this.status = status
    this.code = code
    this.title = title
    this.detail = detail
    this.details = details
    this.retryAfter = more.retryAfter
  }
}

/** Calls the Allocations API of one server. Every call throws an ApiError if it fails. */
export class Allocations {
  readonly #base: string
  readonly #token: string
  readonly #timeout: number

  /**
   * base is the URL of the server, such as https://relay.example.org:7777; another form is a TypeError. token is the bearer
   * token, if the server wants one; timeout is that of a call in ms.
   */
  constructor(base: string, token = "", timeout = 10_000) {
    // A page would send the token to its own server if the URL were relative.
    if (!/^https?:\/\/[^/?#@\s]+(\/[^?#\s]*)?$/i.test(base) || !URL.canParse(base)) {
      throw new TypeError(`"${base}" is no address of a server, such as https://relay.example.org:7777`)
    }
    this.#base = base.replace(/\/+$/, "")
    this.#token = token
    this.#timeout = timeout
  }

  /**
   * Reserves an allocation for the host of up to maxConnections players. It is lost unless the host binds within 10 s.
   * The endpoints of the family come first within their type, by default those of IPv4.
   */
  async allocate(maxConnections: number, region?: string, family?: 4 | 6): Promise<Allocation> {
    return parseAllocation(await this.#post("/v1/allocate", { maxConnections, region, family }, 201), false)
  }

  /** Returns the join code of a host's allocation, which is the same until the allocation ends. */
  async joinCode(allocation: Allocation): Promise<string> {
    const code = (await this.#post("/v1/joincode", { allocationId: allocation.id }, 200, 201)).joinCode
    return typeof code === "string" && code !== "" ? code : invalid("joinCode")
  }

  /**
   * Reserves an allocation for a player of the host with this join code. It is lost unless the player binds within 10 s.
   * The endpoints of the family come first within their type, by default those of the call's. A backend names its player's.
   * The code is taken as a player types or pastes it: spaces, hyphens and characters without a width are not sent.
   */
  async join(joinCode: string, family?: 4 | 6): Promise<Allocation> {
    return parseAllocation(await this.#post("/v1/join", { joinCode: cleanCode(joinCode), family }, 200), true)
  }

  /**
   * Reserves an allocation with which a player takes the place of its host, which has left. allocation is the player's
   * own, which join returned. An ApiError of status 409 with the detail "host" means that the match has a host. See the
   * function migrate, which makes all the calls.
   */
  async migrate(joinCode: string, allocation: Allocation, family?: 4 | 6): Promise<Allocation> {
    const hostConnectionData = btoa(String.fromCharCode(...allocation.hostConnectionData ?? []))
    return parseAllocation(await this.#post("/v1/migrate", { joinCode: cleanCode(joinCode), hostConnectionData, family }, 201), false)
  }

  /** Says that the caller's host leaves, so that its players may take its place at once. Call it before the host closes its connection. */
  async leave(allocation: Allocation): Promise<void> {
    const connectionData = btoa(String.fromCharCode(...allocation.connectionData))
    await this.#post("/v1/leave", { allocationId: allocation.id, connectionData }, 204)
  }

  /** Returns the regions that allocate takes; the first is the default. */
  async regions(): Promise<Region[]> {
    const all = (await this.#call("GET", "/v1/regions", undefined, 200))["regions"]
    if (!Array.isArray(all) || !all.every(r => typeof object(r)?.["id"] === "string")) return invalid("regions")
    return all as Region[]
  }

  /**
   * Returns the region that is best for all players of a match, and why, by what each has measured: the results of the
   * function measure of each. maxConnections is that of the host to come.
   */
  async chooseRegion(
    players: readonly { player?: string; regions: readonly Measurement[] }[], maxConnections = 1,
  ): Promise<{ region: string; reason: string }> {
    const measured = players.map(p => ({ player: p.player, regions: p.regions.map(({ region, rtt, loss }) => ({ region, rtt, loss })) }))
    const { region, reason } = await this.#post("/v1/regions/choose", { maxConnections, players: measured }, 200)
    return typeof region === "string" ? { region, reason: String(reason ?? "") } : invalid("region")
  }

  #post(path: string, body: object, ...want: number[]): Promise<Record<string, unknown>> {
    return this.#call("POST", path, JSON.stringify(body), ...want)
  }

  async #call(method: string, path: string, body: string | undefined, ...want: number[]): Promise<Record<string, unknown>> {
    const headers: Record<string, string> = { Accept: "application/json" }
    if (body !== undefined) headers["Content-Type"] = "application/json"
    if (this.#token !== "") headers["Authorization"] = "Bearer " + this.#token
    let answer: Response, text: string
    try {
      answer = await fetch(this.#base + path, {
        method, headers, ...body === undefined ? {} : { body }, credentials: "omit", redirect: "error", signal: AbortSignal.timeout(this.#timeout),
      })
      text = await answer.text()
    } catch (cause) {
      throw new ApiError(0, 15998, "No answer", `${this.#base}: ${describe(cause)}`, { cause })
    }
    if (answer.status === 204 && want.includes(204)) return {}
    const json = parseObject(text)
    if (want.includes(answer.status)) return object(json["data"]) ?? invalid("data", answer.status)
    const { title, detail, code, details } = json
    const wait = Number(answer.headers.get("Retry-After") ?? NaN)
    throw new ApiError(answer.status, typeof code === "number" ? code : 15000 + answer.status,
      typeof title === "string" && title !== "" ? title : answer.statusText || "Error",
      typeof detail === "string" ? detail : "the answer is not a problem document", {
        details: Array.isArray(details) ? details.map(d => ({ key: String(object(d)?.["key"]), value: String(object(d)?.["value"]) })) : [],
        ...wait >= 0 ? { retryAfter: wait } : {},
      })
  }
}

function parseAllocation(data: Record<string, unknown>, joiner: boolean): Allocation {
  const a = object(data["allocation"]) ?? invalid("allocation")
  const endpoints = Array.isArray(a["serverEndpoints"]) ? a["serverEndpoints"].map(object) : []
  if (!endpoints.length || !endpoints.every(e => typeof e?.["connectionType"] === "string" && typeof e["host"] === "string" && Number.isInteger(e["port"]))) {
    invalid("serverEndpoints")
  }
  return {
    id: idText(base64(a, "allocationIdBytes", ID_SIZE, ID_SIZE)),
    key: base64(a, "key", KEY_SIZE, KEY_SIZE),
    connectionData: base64(a, "connectionData", 1, MAX_CONNECTION_DATA),
    ...joiner ? { hostConnectionData: base64(a, "hostConnectionData", 1, MAX_CONNECTION_DATA) } : {},
    region: String(a["region"] ?? ""),
    endpoints: endpoints as unknown as Endpoint[],
  }
}

function base64(from: Record<string, unknown>, member: string, min: number, max: number): Bytes {
  const text = from[member]
  try {
    const b = Uint8Array.from(atob(typeof text === "string" ? text : ""), c => c.charCodeAt(0))
    if (b.length >= min && b.length <= max) return b
  } catch {} // not base64
  return invalid(member)
}

/** Returns a join code without what a chat, a keyboard or a reader puts into it and no player sees as a part of it. */
function cleanCode(code: string): string { return code.replace(/[\s\p{Zs}\p{Pd}\p{Cf}\u2212]/gu, "").toUpperCase() }

/** Returns the messages of an error and of its causes, where Node says what failed. */
export function describe(e: unknown): string {
  if (!(e instanceof Error)) return String(e)
  const cause = e.cause instanceof Error ? e.cause.message || (e.cause as { code?: string }).code : undefined
  return cause ? `${e.message}: ${cause}` : e.message
}

function parseObject(text: string): Record<string, unknown> {
  try {
    return object(JSON.parse(text)) ?? {}
  } catch {
    return {}
  }
}

function object(value: unknown): Record<string, unknown> | undefined {
  return typeof value === "object" && value !== null ? value as Record<string, unknown> : undefined
}

function invalid(member: string, status = 200): never {
  throw new ApiError(status, 15999, "Invalid answer", member + " is missing or has a wrong size")
}
