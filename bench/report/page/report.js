"use strict"

const scaled = (v, step, units) => {
  let i = 0
  for (; i < units.length - 1 && Math.abs(v) >= step; i++) v /= step
  return `${+v.toPrecision(3)} ${units[i]}`
}

const time = v => scaled(v, 1000, ["ns", "µs", "ms", "s"])
const nines = v => `${+(100 - 100 / 10 ** v).toFixed(7)} %`

const height = 340

// value returns the text of a value in the legend, which is empty without a cursor.
const value = format => (_, v, __, index) => v != null ? format(v) : index == null ? "" : "–"

function draw(box) {
  const css = getComputedStyle(document.documentElement)
  const color = name => css.getPropertyValue(name).trim()
  // A logarithmic axis has 1, 2 and 5 of each decade, or 1 alone if there are many.
  const round = (u, all) => all.map(v => (u.scales.y.max / u.scales.y.min < 1000 ? "125" : "1").includes(v.toExponential()[0]) ? v : null)
  const axis = (label, format, space) => ({
    label, space, labelGap: 2, labelSize: 20, font: "12px system-ui", labelFont: "12px system-ui",
    stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 }, ticks: { show: false },
    values: (_, all) => all.map(v => v === null ? "" : format(v)),
  })
  const x = axis("share that was at least as fast", nines, 64)
  const y = axis("latency from the due time", time, 30)
  const dash = i => (Math.floor(i / 6) + i) % 4
  const series = plot.lines.map(({ name }, i) => ({
    label: name, spanGaps: true, value: value(time),
    stroke: color(`--s${i % 6}`), width: 2, dash: [[], [7, 4], [2, 4], [9, 4, 2, 4]][dash(i)],
    points: { show: false },
  }))
  return new uPlot({
    width: box.clientWidth, height,
    legend: { markers: { dash: (_, i) => ["solid", "dashed", "dotted", "dashed"][dash(i - 1)] } },
    cursor: { drag: { x: true, y: false } },
    scales: {
      x: { time: false, range: (_, min, max) => [min - (min === max), max + (min === max)] },
      y: { distr: 3 },
    },
    axes: [
      { ...x, size: 28, splits: (_, __, ___, max) => [Math.log10(2), 1, 2, 3, 4, 5, 6, 7].filter(v => v <= max) },
      { ...y, size: 66, grid: { ...y.grid, filter: round }, filter: round },
    ],
    series: [{ label: x.label, value: value(nines) }, ...series],
  }, [plot.at, ...plot.lines.map(l => l.values)], box)
}

const box = document.querySelector(".plot")
if (box) {
  let drawn = draw(box)
  const redraw = () => {
    drawn.destroy()
    drawn = draw(box)
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw)
  new ResizeObserver(() => drawn.setSize({ width: box.clientWidth, height })).observe(box)
}
