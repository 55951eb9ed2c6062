package metrics

import (
	"cmp"
	"slices"

	"github.com/ferryrelay/ferry/engine"
)

// maxUsageTenants bounds the time series of usage: the tenants that have relayed most bytes.
// A tenant is a project with one environment. /usage has all of them.
const maxUsageTenants = 100

// writeUsage writes what the largest tenants have used in all runs.
func writeUsage(p *page, all []engine.Usage) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b engine.Usage) int { return cmp.Compare(b.Bytes, a.Bytes) })
	all = slices.DeleteFunc(all, func(u engine.Usage) bool { return u.Others || u.Name.Project == "" })
	all = all[:min(len(all), maxUsageTenants)]
	p.family("ferry_usage_bytes_total", counter, "Bytes that the players of a project sent and the relay forwarded, in all runs, of the 100 largest projects.")
	for _, u := range all {
		p.sample("ferry_usage_bytes_total", u.Bytes, "project", u.Name.Project, "environment", u.Name.Environment)
	}
	p.family("ferry_usage_datagrams_total", counter, "Datagrams that the players of a project sent and the relay forwarded, in all runs, of the 100 largest projects.")
	for _, u := range all {
		p.sample("ferry_usage_datagrams_total", u.Datagrams, "project", u.Name.Project, "environment", u.Name.Environment)
	}
	p.family("ferry_usage_player_seconds_total", counter, "Sum of the times for which the players of a project were bound, in all runs, of the 100 largest projects.")
	for _, u := range all {
		p.seconds("ferry_usage_player_seconds_total", u.PlayerSeconds, "project", u.Name.Project, "environment", u.Name.Environment)
	}
}
