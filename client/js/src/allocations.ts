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

  /** base is the URL of the server; token is the bearer token, if the server wants one; timeout is that of a call in ms. */
  constructor(base: string, token = "", timeout = 10_000) {
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
   */
  async join(joinCode: string, family?: 4 | 6): Promise<Allocation> {
    return parseAllocation(await this.#post("/v1/join", { joinCode, family }, 200), true)
  }

  async #post(path: string, body: object, ...want: number[]): Promise<Record<string, unknown>> {
    const headers: Record<string, string> = { "Content-Type": "application/json", Accept: "application/json" }
    if (this.#token !== "") headers["Authorization"] = "Bearer " + this.#token
    let answer: Response, text: string
    try {
      answer = await fetch(this.#base + path, {
        method: "POST", body: JSON.stringify(body), headers, credentials: "omit", redirect: "error", signal: AbortSignal.timeout(this.#timeout),
      })
      text = await answer.text()
    } catch (cause) {
      throw new ApiError(0, 15998, "No answer", cause instanceof Error ? cause.message : String(cause), { cause })
    }
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
