package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
)

// TestUsage: the largest tenants have series, and labels are quoted.
func TestUsage(t *testing.T) {
	all := []engine.Usage{{Others: true, Bytes: 1 << 40}, {Tenant: 7, Bytes: 1 << 40}} // without names
	for i := range maxUsageTenants + 20 {
		all = append(all, engine.Usage{
			Tenant: uint64(100 + i), Name: alloc.Tenant{Project: fmt.Sprintf(`game "%d"`, i), Environment: "live"},
			Bytes: uint64(i), Datagrams: uint64(2 * i), PlayerSeconds: float64(i) / 2,
		})
	}
	var p page
	writeUsage(&p, all)
	text := p.String()
	for _, want := range []string{
		`ferry_usage_bytes_total{project="game \"119\"",environment="live"} 119`,
		`ferry_usage_datagrams_total{project="game \"20\"",environment="live"} 40`,
		`ferry_usage_player_seconds_total{project="game \"21\"",environment="live"} 10.5`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "ferry_usage_bytes_total{"); n != maxUsageTenants || strings.Contains(text, `game \"19\"`) {
		t.Errorf("%d tenants", n)
	}
}
