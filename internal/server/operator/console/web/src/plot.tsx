import { useEffect, useRef } from "preact/hooks"
import uPlot from "uplot"
import type { Sample } from "./api"

export interface Series { label: string; values: (number | null)[] }

const height = 150

const dashes: (number[] | undefined)[] = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]]

/** Plot draws series over the times of samples. Lines differ in dashes as well as in colour. */
export function Plot({ title, samples, series, format }: { title: string; samples: Sample[]; series: Series[]; format: (n: number) => string }) {
  const at = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | undefined>(undefined)
  const shape = series.map(s => s.label).join("\n")
  const data: uPlot.AlignedData = [samples.map(s => Date.parse(s.at) / 1000), ...series.map(s => s.values)]
  useEffect(() => {
    const box = at.current!
    const color = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
    const make = () => {
      plot.current?.destroy()
      const axis = { stroke: color("--text-soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } }
      plot.current = new uPlot({
        width: box.clientWidth, height, legend: { show: false }, cursor: { show: false },
        scales: { y: { range: (_u, _min, max) => [0, Math.max(max * 1.1, 1)] } },
        axes: [
          { ...axis, values: (_u, times) => times.map(t => new Date(t * 1000).toLocaleTimeString("en-GB")), space: 80, size: 28 },
          { ...axis, size: 86, values: (_u, values) => values.map(format) },
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
  const last = series.map(s => ({ label: s.label, value: s.values[s.values.length - 1] ?? null }))
  return <figure class="plot">
    <figcaption>
      <strong>{title}</strong>
      {last.slice(0, 8).map((s, i) => <span key={s.label} class="key"><i class={`mark mark-${i % 6}`} aria-hidden="true" />{s.label} <b>{s.value === null ? "–" : format(s.value)}</b></span>)}
    </figcaption>
    <div ref={at} role="img" aria-label={`${title} over the last five minutes; now ${last.map(s => `${s.label} ${s.value === null ? "unknown" : format(s.value)}`).join(", ")}`} />
  </figure>
}
