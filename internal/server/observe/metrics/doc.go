// Package metrics writes the page /metrics in the text format of Prometheus.
//
// It defines the names of the metrics and writes the counts of all other packages under
// them. It reads them when the page is requested, and adds nothing to the path of a
// datagram.
//
// The number of series is bounded by the build and the machine: outcomes, events,
// workers, limits, calls and statuses. No label contains data of a player, a match, a
// project or an address.
//
// Histograms have cumulative le buckets, from which every Prometheus can compute
// quantiles. The histograms of VictoriaMetrics/metrics 1.35 write vmrange buckets, which
// plain Prometheus cannot read, so they are not used.
package metrics
