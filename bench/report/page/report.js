"use strict"

const scaled = (v, step, units) => {
  let i = 0
  for (; i < units.length - 1 && Math.abs(v) >= step; i++) v /= step
  return `${+v.toPrecision(3)} ${units[i]}`
}

// formats are those of the kinds of an axis.
const formats = {
  count: v => v.toLocaleString("en"),
  time: v => scaled(v, 1000, ["ns", "µs", "ms", "s"]),
  nines: v => `${+(100 - 100 / 10 ** v).toFixed(7)} %`,
  seconds: v => String(v),
}

const height = 300

// value returns the text of a value in the legend, which is empty without a cursor.
const value = kind => (_, v, __, index) => v != null ? formats[kind](v) : index == null ? "" : "–"

function draw(plot, box) {
  const css = getComputedStyle(document.documentElement)
  const color = name => css.getPropertyValue(name).trim()
  // A logarithmic axis has 1, 2 and 5 of each decade, or 1 alone if there are many.
  const round = (u, all) => all.map(v => (u.scales.y.max / u.scales.y.min < 1000 ? "125" : "1").includes(v.toExponential()[0]) ? v : null)
  const axis = ({ label, kind, log }, space) => ({
    label, space, labelGap: 2, labelSize: 20, font: "12px system-ui", labelFont: "12px system-ui",
    stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1, ...(log && { filter: round }) }, ticks: { show: false },
    values: (_, all) => all.map(v => v === null ? "" : formats[kind](v)),
    ...(kind === "seconds" && { incrs: [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600] }),
    ...(kind === "nines" && { splits: (_, __, ___, max) => [Math.log10(2), 1, 2, 3, 4, 5, 6, 7].filter(v => v <= max) }),
    ...(log && { filter: round }),
  })
  const dash = i => (Math.floor(i / 6) + i) % 4
  const series = plot.lines.map(({ name }, i) => ({
    label: name, spanGaps: plot.x.kind === "nines", value: value(plot.y.kind),
    stroke: color(`--s${i % 6}`), width: 2, dash: [[], [7, 4], [2, 4], [9, 4, 2, 4]][dash(i)],
    points: { show: false },
  }))
  // Marks are vertical lines; what is before the first and after the last of them is shaded.
  const mark = u => {
    if (!plot.marks?.length) return
    const { left, top, width, height } = u.bbox
    const at = plot.marks.map(v => Math.min(Math.max(u.valToPos(v, "x", true), left), left + width))
    const last = at.at(-1)
    u.ctx.fillStyle = color("--shade")
    u.ctx.fillRect(left, top, at[0] - left, height)
    u.ctx.fillRect(last, top, left + width - last, height)
    u.ctx.fillStyle = color("--soft")
    for (const x of at.slice(1, -1)) u.ctx.fillRect(x, top, devicePixelRatio, height)
  }
  return new uPlot({
    width: box.clientWidth, height,
    legend: { markers: { dash: (_, i) => ["solid", "dashed", "dotted", "dashed"][dash(i - 1)] } },
    cursor: { drag: { x: true, y: false } },
    scales: {
      x: { time: false, range: (_, min, max) => [min - (min === max), max + (min === max)] },
      y: plot.y.log ? { distr: 3 } : { range: (_, __, max) => [0, Math.max(1.05 * max, 1)] },
    },
    axes: [{ ...axis(plot.x, 64), size: 28 }, { ...axis(plot.y, 30), size: 66 }],
    series: [{ label: plot.x.label, value: value(plot.x.kind) }, ...series],
    hooks: { drawClear: [mark] },
  }, [plot.at, ...plot.lines.map(l => l.values)], box)
}

for (const plot of plots ?? []) {
  const box = document.querySelector(`#${plot.id} .plot`)
  if (!box) continue
  let drawn = draw(plot, box)
  const redraw = () => {
    drawn.destroy()
    drawn = draw(plot, box)
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw)
  new ResizeObserver(() => drawn.setSize({ width: box.clientWidth, height })).observe(box)
}
