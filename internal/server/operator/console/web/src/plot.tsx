import { useEffect, useRef } from "preact/hooks"
import uPlot from "uplot"
import { dayClock, known } from "./format"

export interface Series { label: string; values: (number | null)[] }

const height = 150

// The seconds between labels. Without two and three minutes, a narrow plot of five minutes has none.
const incrs = [1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200, 10800, 21600]

const dashes: (number[] | undefined)[] = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]]

/** Plot draws series over times. Lines differ in dashes as well as in colour. The figure of a series
 *  is its last value, or what now returns for it. */
export function Plot({ title, samples, series, format, now, over = "the last five minutes" }: {
  title: string; samples: { at: string }[]; series: Series[]; format: (n: number) => string; now?: (i: number) => number | null; over?: string
}) {
  const at = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | undefined>(undefined)
  const shape = [over, ...series.map(s => s.label)].join("\n")
  const data: uPlot.AlignedData = [samples.map(s => Date.parse(s.at) / 1000), ...series.map(s => s.values)]
  useEffect(() => {
    const box = at.current!
    const color = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
    const make = () => {
      plot.current?.destroy()
      const axis = { stroke: color("--text-soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } }
      plot.current = new uPlot({
        width: box.clientWidth, height, legend: { show: false }, cursor: { show: false }, padding: [10, 30, 0, 0],
        scales: { y: { range: (_u, _min, max) => [0, Math.max(max * 1.1, 1)] } },
        axes: [
          { ...axis, values: (_u, times) => times.map(dayClock(times)), space: 70, size: 28, incrs },
          { ...axis, size: box.clientWidth < 420 ? 74 : 86, values: (_u, values) => values.map(format) },
        ],
        series: [{}, ...series.map((s, i) => ({ label: s.label, stroke: color(`--series-${i % 6}`), width: 1.5, dash: dashes[Math.floor(i / 6) % 4] ?? (i % 6 ? dashes[i % 4] : undefined), points: { show: false } }))],
      }, data, box)
    }
    make()
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height }))
    resized.observe(box)
    const themed = new MutationObserver(make)
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] })
    const media = matchMedia("(prefers-color-scheme: dark)")
    media.addEventListener("change", make)
    return () => {
      resized.disconnect()
      themed.disconnect()
      media.removeEventListener("change", make)
      plot.current?.destroy()
      plot.current = undefined
    }
  }, [shape])
  useEffect(() => { plot.current?.setData(data) })
  const last = series.map((s, i) => ({ label: s.label, value: now ? now(i) : s.values[s.values.length - 1] ?? null }))
  return <figure class="plot">
    <figcaption>
      <strong>{title}</strong>
      {last.slice(0, 8).map((s, i) => <span key={s.label} class="key"><i class={`mark mark-${i % 6}`} aria-hidden="true" />{s.label} <b>{known(s.value, format)}</b></span>)}
    </figcaption>
    <div ref={at} role="img" aria-label={`${title} over ${over}; now ${last.map(s => `${s.label} ${s.value === null ? "unknown" : format(s.value)}`).join(", ")}`} />
  </figure>
}
