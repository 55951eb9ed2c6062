package store

import (
	"fmt"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// TestForgottenTenantsLeaveNothing: a tenant that once had a code must not
// take memory for ever, for callers can name as many as they have credentials.
func TestForgottenTenantsLeaveNothing(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	for n := range 50 {
		tenant := alloc.Tenant{Project: fmt.Sprint(n)}
		if ok, err := m.PutCode(t.Context(), tenant, "6789BC", proto.AllocationID{byte(n + 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if len(m.tenants) != 50 || len(m.byHost) != 50 {
		t.Fatalf("%d tenants and %d hosts, want 50", len(m.tenants), len(m.byHost))
	}
	for n := range 50 {
		m.Forget(proto.AllocationID{byte(n + 1)})
	}
	if len(m.tenants) != 0 || len(m.byHost) != 0 {
		t.Errorf("%d tenants and %d hosts left", len(m.tenants), len(m.byHost))
	}
}
