// Package report turns what a run measured, a [bench.Result], into something
// to read: one screen of text, one self-contained HTML file with plots, and
// ratios between runs.
//
// It computes nothing that a run did not measure: every value is a field of the
// result or a quotient of two. The list of values is in text.go, once, and
// text, page and comparisons all use it.
//
// Absolute figures are context only. What may be claimed is a ratio between
// runs of one machine under one load, best as the median over interleaved
// rounds: [Compare] and [CompareRounds] refuse everything else, and say when
// the generator and not the server was the limit.
//
// The page needs no script and no network: its plots are SVG drawn here, it
// follows the reader's choice of light or dark, and under each plot stand its
// numbers.
package report
