// The calls to the admin pages.
import type { Login } from "./types"

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
export const plain = (text: string) => text.trim().replace(/(^|: )(?:(?:admin|alloc|api|ban|capture|cluster|config|console|engine|fleet|history|httpapi|placement|redisstore|rpc|state|statefile|table): )+/g, "$1")

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
