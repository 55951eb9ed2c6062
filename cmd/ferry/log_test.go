package main

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/proto"
)

// TestLogValues: ids and durations are texts for people in both formats, and a library's error is no line at level info.
func TestLogValues(t *testing.T) {
	t.Parallel()
	for format, want := range map[string][]string{
		"text": {
			"relay=01000000-0000-0000-0000-000000000000", "host=02000000-0000-0000-0000-000000000000", "short=1.235ms", "long=1m2.35s",
			"exact=10s", "none=0s", "at=127.0.0.1:1", "failed=3", `level=WARN msg="a library reports: metrics: no file"`,
		},
		"json": {
			`"relay":"01000000-0000-0000-0000-000000000000"`, `"host":"02000000-0000-0000-0000-000000000000"`, `"short":"1.235ms"`,
			`"long":"1m2.35s"`, `"exact":"10s"`, `"none":"0s"`, `"at":"127.0.0.1:1"`, `"failed":3`,
			`"level":"WARN","msg":"a library reports: metrics: no file"`,
		},
	} {
		var out strings.Builder
		c := config.Serve()
		c.LogFormat = format
		log, _ := newLogger(&out, c)
		log.Info("values", "relay", alloc.RelayID{1}, "host", proto.AllocationID{2}, "short", 1234567*time.Nanosecond,
			"long", 62_345_678_901*time.Nanosecond, "exact", 10*time.Second, "none", time.Duration(0),
			"at", netip.MustParseAddrPort("127.0.0.1:1"), slog.Int("failed", 3))
		if _, err := (libraryLog{log}).Write([]byte("ERROR: metrics: no file\n")); err != nil {
			t.Error(err)
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%s: %q is missing in %s", format, text, out.String())
			}
		}
	}
}
