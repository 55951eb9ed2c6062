package history

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine"
)

// TestPrivateSourcesAreLogged: one line, that names the setting, and another one only later.
func TestPrivateSourcesAreLogged(t *testing.T) {
	t.Parallel()
	stats := engine.Stats{Drops: map[string]uint64{}}
	var out bytes.Buffer
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	start := now
	p := privateSources{stats: func() engine.Stats { return stats }, log: slog.New(slog.NewTextHandler(&out, nil)),
		now: func() time.Time { return now }}
	lines := func() int { return strings.Count(out.String(), "allow_private_sources") }
	if p.look(); lines() != 0 || p.droppedSince(start.Add(-time.Hour)) {
		t.Errorf("without a drop: %s", &out)
	}
	for i := range 100 {
		now = now.Add(privateLookEvery)
		stats.Drops["private"] += uint64(i)
		p.look()
	}
	if lines() != 1 || !strings.Contains(out.String(), "level=WARN") {
		t.Errorf("%d lines in 500 s: %s", lines(), &out)
	}
	if !p.droppedSince(start) || p.droppedSince(now) {
		t.Error("when datagrams were dropped is wrong")
	}
	now = now.Add(privateLogEvery)
	if p.look(); lines() != 1 {
		t.Error("a line without a new drop")
	}
	stats.Drops["private"]++
	if p.look(); lines() != 2 {
		t.Errorf("%d lines after 10 minutes more", lines())
	}
}
