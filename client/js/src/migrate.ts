import { type Allocation, type Allocations, ApiError } from "./allocations.ts"
import { RelayError } from "./errors.ts"

/** Times are in milliseconds. */
export interface MigrateOptions {
  /** How long this player lets others go first. A game gives the players that it prefers as hosts less. Default 0. */
  delay?: number
  /** The time between calls, a quarter more or less, while the player has to wait for at most a second. Default 250. */
  retry?: number
  /** Ends the calls. */
  signal?: AbortSignal
}

/** The numbers of problems. */
const ALLOCATION_NOT_FOUND = 15008, JOIN_CODE_NOT_FOUND = 15009, NOT_FOUND = 15404, INVALID_ANSWER = 15999

/** The longest time between calls while another player may become the host, or the host may say that it leaves, at any moment. */
const LONGEST_WAIT = 1000

/**
 * Goes on with a match whose host has left. All its players call it, with their own allocation and the join code. It
 * returns the allocation of the player's next connection: that of a host, without hostConnectionData, or that of a joiner
 * of the match's next host. Open it at once, before the old connection is closed: a host's allocation that is not bound
 * within 2 s goes to the next player that asks. Then open throws "not-found", and the player calls migrate again.
 *
 * While the relay still waits for the host, migrate asks again until signal ends it: a host that crashed counts as one that
 * has left after some seconds of silence. It throws a RelayError "match-over", an ApiError, or the reason of signal.
 */
export async function migrate(api: Allocations, joinCode: string, allocation: Allocation, options: MigrateOptions = {}): Promise<Allocation> {
  if (allocation.hostConnectionData === undefined) throw new TypeError("a host takes the place of no host")
  await sleep(options.delay ?? 0, options.signal)
  for (;;) {
    const next = await attempt(api, joinCode, allocation)
    if (!(next instanceof ApiError)) return next
    await sleep(wait(next, options.retry ?? 250), options.signal)
  }
}

/** Asks once for the host's place, and joins the next host if there is one. Returns the ApiError after which to ask again. */
async function attempt(api: Allocations, joinCode: string, allocation: Allocation): Promise<Allocation | ApiError> {
  try {
    return await api.migrate(joinCode, allocation)
  } catch (e) {
    if (!(e instanceof ApiError) || e.code === INVALID_ANSWER) throw e
    const taken = e.status === 409 && e.details.some(d => d.key === "host")
    if (e.status === 0 || isBusy(e) || e.status === 409 && !taken) return e
    if (e.code === JOIN_CODE_NOT_FOUND || e.code === NOT_FOUND) throw matchOver(e)
    if (!taken && e.code !== ALLOCATION_NOT_FOUND) throw e
  }
  try { // The match has a host, or this player may not take the place.
    return await api.join(joinCode)
  } catch (e) {
    if (!(e instanceof ApiError) || e.code === INVALID_ANSWER) throw e
    if (e.status === 0 || e.status === 409 || isBusy(e)) return e
    throw e.code === JOIN_CODE_NOT_FOUND ? matchOver(e) : e
  }
}

const matchOver = (e: ApiError) => new RelayError("match-over", "the match is over: " + e.message)

/** Whether the server cannot answer now. */
const isBusy = (e: ApiError) => e.status === 503 || e.status === 429

function wait(e: ApiError, retry: number): number {
  const after = (e.retryAfter ?? 0) * 1000
  if (isBusy(e)) retry = Math.max(retry, after)
  else if (after > LONGEST_WAIT) retry = Math.max(retry, LONGEST_WAIT)
  return retry * (0.75 + Math.random() / 2)
}

function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const abort = () => {
      clearTimeout(timer)
      reject(signal!.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort)
      resolve()
    }, ms)
    signal?.addEventListener("abort", abort, { once: true })
  })
}
