package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Relay is what a relay of this project says of itself on its page of metrics.
type Relay struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Workers  int    `json:"workers"`
	// Drops are what the relay dropped from before the warm-up until after the drain, by its
	// name of the reason; "kernel" has those on its sockets.
	Drops map[string]uint64 `json:"drops,omitempty"`
	// Limited is how many of those its rate limits dropped.
	Limited uint64 `json:"limited"`
}

// newRelay takes a counter that is lower than before for one that began anew.
func newRelay(before, after string) *Relay {
	r, was := &Relay{Drops: map[string]uint64{}}, samplesOf(before)
	for name, now := range samplesOf(after) {
		reason := ""
		switch {
		case strings.HasPrefix(name, "ferry_build_info{"):
			r.Version, r.Revision = labelOf(name, "version"), labelOf(name, "revision")
		case strings.HasPrefix(name, "ferry_worker_received_total{"):
			r.Workers++
		case name == "ferry_kernel_drops_total":
			reason = "kernel"
		case strings.HasPrefix(name, "ferry_drops_total{"):
			reason = labelOf(name, "reason")
		}
		if old := was[name]; now >= old {
			now -= old
		}
		if reason != "" && now > 0 {
			r.Drops[reason] = uint64(now)
		}
	}
	r.Limited = r.Drops["rate"] + r.Drops["load"]
	return r
}

func samplesOf(page string) map[string]float64 {
	samples := map[string]float64{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil && at > 0 {
			samples[line[:at]] = v
		}
	}
	return samples
}

func labelOf(sample, name string) string {
	_, rest, _ := strings.Cut(sample, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

func (r *Relay) dropText() string {
	if r == nil || len(r.Drops) == 0 {
		return ""
	}
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(r.Drops)) {
		list = append(list, fmt.Sprintf("%s %d", reason, r.Drops[reason]))
	}
	return "; the relay says that it dropped: " + strings.Join(list, ", ")
}

func (cfg *Config) readMetrics(ctx context.Context) (string, error) {
	if cfg.Metrics == nil {
		return "", nil
	}
	page, err := cfg.Metrics(ctx)
	if err != nil {
		return "", fmt.Errorf("bench: metrics of the relay: %w", err)
	}
	return page, nil
}
