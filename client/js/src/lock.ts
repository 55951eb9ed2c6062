import { RelayError } from "./errors.ts"

/** How long to wait for a page that is being left, as after a reload, in milliseconds. */
const WAIT = 1000

/**
 * Takes an allocation for this page among all pages of its origin, and returns the function that releases it. Throws a
 * RelayError if another connection has it. Where there are no Web Locks, as in Node before 24, nothing is taken.
 */
export function lockAllocation(id: string): Promise<() => void> {
  const locks = (globalThis as { navigator?: { locks?: LockManager } }).navigator?.locks
  if (!locks) return Promise.resolve(() => {})
  return new Promise((resolve, reject) => {
    locks.request("ferry allocation " + id, { signal: AbortSignal.timeout(WAIT) }, () => new Promise<void>(release => resolve(release)))
      // Others than a time-out mean that this page may have no locks, as in a sandbox.
      .catch((e: { name?: string }) => e.name === "TimeoutError" ? reject(inUse()) : resolve(() => {}))
  })
}

/** Returns the error of a connection whose allocation another one uses. */
export function inUse(): RelayError { return new RelayError("in-use", "another session uses this allocation") }
