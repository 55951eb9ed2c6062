// Package metrics writes what /metrics shows, in the text format of Prometheus.
//
// It owns the names of the metrics and turns [engine.Stats], the counts of DTLS
// and WebSocket, the requests of the API, the counts of a fleet, of issuers' keys,
// of quotas and of the operator's programs, and what the process knows besides
// into them. Everything of the data plane is read when it is asked for: the relay
// counts in words of its own and this package adds nothing to the way of a
// datagram.
//
// The number of series is bounded by the build and the machine: outcomes,
// events, workers, limits, calls and statuses. No label holds anything of a
// player, a match, a project or an address.
//
// Histograms have the classic le buckets, cumulative, which every Prometheus
// can take quantiles of. (The histograms of VictoriaMetrics/metrics 1.35 write
// vmrange buckets, which plain Prometheus cannot read, so they are not used.)
package metrics
