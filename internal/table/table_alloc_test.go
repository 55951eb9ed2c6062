package table

import (
	"testing"

	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestTableDoesNotAllocate: not per datagram, and not per change of state
// either, as long as the index does not grow.
func TestTableDoesNotAllocate(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	table := NewTable(0)
	host := bind(t, table, Spec{ID: testID(0), Role: RoleHost}, testEndpoint(0))
	joiner := bind(t, table, Spec{ID: testID(1), Role: RoleJoiner}, testEndpoint(1))
	single := bind(t, table, Spec{ID: testID(2), Role: RoleJoiner}, testEndpoint(2))
	table.Link(joiner, host)
	hostEntry, joinerEntry := at(t, table, testID(0)), at(t, table, testID(1))
	now, moves, quota := int64(60_000), 0, NewQuota(1000, 512<<10)
	for name, do := range map[string]func(){
		"ByEndpoint":       func() { byEndpoint(table, testEndpoint(0)) },
		"ByEndpoint, miss": func() { byEndpoint(table, testEndpoint(9)) },
		"ByID":             func() { table.ByID(testID(0)) },
		"ByID, miss":       func() { table.ByID(testID(9)) },
		"At":               func() { table.At(host) },
		"Peer of joiner":   func() { peerOf(table, &joinerEntry, testID(0)) },
		"Peer of host":     func() { peerOf(table, &hostEntry, testID(1)) },
		"Heard":            func() { now++; table.Activity(host).RecordReceive(Tick(now)) },
		"Active":           func() { now++; table.Activity(host).RecordActivity(Tick(now)) },
		"Stranger":         func() { now += 200; table.TakeNotConnected(host, testID(9), now) },
		"Mismatch":         func() { now += 200; table.TakeMismatch(host, Rate{Interval: 1000, Burst: 1}, now) },
		"Meter":            func() { now++; table.Activity(host).TakeQuota(quota, 100, now) },
		"Relayed":          func() { now++; RecordRelay(RoleHost, table.Activity(host), table.Activity(joiner), Tick(now)) },
		"Prove and Spend": func() {
			table.Activity(host).RequireValidation(100)
			table.Activity(host).AllowSend(60)
			table.Activity(host).Validate()
		},
		"Admit and Mark": func() {
			table.RecordBind(host, 5)
			table.SetFlags(host, BindConfirmed)
			table.ClearFlags(host, BindConfirmed)
		},
		"Link and Unlink": func() { table.Link(single, host); table.Unlink(single) },
		"Bind, moving":    func() { moves++; table.Bind(single, testEndpoint(2+moves%2)) },
		"Bind, taking over": func() {
			table.Bind(host, testEndpoint(1))
			table.Bind(joiner, testEndpoint(0))
			table.Bind(host, testEndpoint(0))
			table.Bind(joiner, testEndpoint(1))
		},
		"a life": func() {
			h, _ := table.Reserve(Spec{ID: testID(9), Role: RoleHost}, 1)
			table.Bind(h, testEndpoint(9))
			table.End(h)
			table.Recycle(h)
		},
	} {
		if n := testing.AllocsPerRun(1000, do); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
