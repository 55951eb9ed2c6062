// Numbers, times and names as text.

/** known is a figure as text, or a dash before it was measured. */
export const known = (n: number | null | undefined, format: (n: number) => string) => n === null || n === undefined ? "–" : format(n)

export const perSecond = (n: number) => short(n) + "/s"

export function number(n: number): string {
  return Math.round(n).toLocaleString("en")
}

/** counted is a number and its noun, in the plural unless there is one. */
export const counted = (n: number, noun: string, plural = noun + "s") => `${number(n)} ${n === 1 ? noun : plural}`

/** short is a number with at most four digits: 12.3 k. */
export function short(n: number): string {
  const abs = Math.abs(n)
  if (abs >= 1e9) return (n / 1e9).toFixed(2) + " G"
  if (abs >= 1e6) return (n / 1e6).toFixed(2) + " M"
  if (abs >= 1e4) return (n / 1e3).toFixed(1) + " k"
  if (abs >= 100 || Number.isInteger(n)) return number(n)
  return n.toFixed(abs >= 10 ? 1 : 2)
}

/** withUnit is 12.3 kbit/s, or 12 bit/s. */
function withUnit(n: number, unit: string): string {
  const s = short(n)
  return /[kMG]$/.test(s) ? s + unit : `${s} ${unit}`
}

export const bits = (bytesPerSecond: number) => withUnit(bytesPerSecond * 8, "bit/s")

export const bytes = (n: number) => withUnit(n, "B")

export function age(seconds: number): string {
  if (seconds < 120) return `${Math.floor(seconds)} s`
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`
  return `${Math.floor(seconds / 86400)} d`
}

export function since(time: string | undefined): string {
  return time ? age((Date.now() - Date.parse(time)) / 1000) : ""
}

export function clock(time: string): string {
  return new Date(time).toLocaleTimeString("en-GB")
}

/** moment is a time of day, with its date if it is not of the last 24 hours. */
export const moment = (time: string) => Date.now() - Date.parse(time) < 86_400_000 ? clock(time) : day(time)

/** day is a date and a time of day, to the minute. */
export function day(time: string): string {
  return new Date(time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })
}

export function ms(n: number): string {
  return n < 0 ? "lost" : n < 10 ? n.toFixed(2) + " ms" : n.toFixed(0) + " ms"
}

export function project(a: { project?: string; environment?: string; tenant?: string; others?: boolean }): string {
  if (a.others) return "(all others)"
  if (a.project || a.environment) return `${a.project}/${a.environment}`
  return a.tenant ?? ""
}

/** dayClock is the clock for the axis of a plot: with seconds, unless the times are minutes apart. */
export function dayClock(times: number[]): (t: number) => string {
  const long = times.length > 1 && times[1]! - times[0]! >= 60
  return t => new Date(t * 1000).toLocaleTimeString("en-GB", long ? { hour: "2-digit", minute: "2-digit" } : {})
}

/** exact is a date and a time of day, to the second and with the zone. */
export function exact(time: string): string {
  return new Date(time).toLocaleString("en-GB", {
    year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  })
}
