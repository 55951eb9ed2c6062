package alloc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/storetest"
	"github.com/ferryrelay/ferry/proto"
)

var _ alloc.CodeMover = (*alloc.MemoryStore)(nil)

func TestMemoryStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) alloc.Store { return alloc.NewMemoryStore() })
	storetest.RunMover(t, func(*testing.T) alloc.CodeMover { return alloc.NewMemoryStore() })
}

func TestMemoryStoreIgnoresContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := alloc.NewMemoryStore()
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	if ok, err := m.PutCode(ctx, tenant, "6789BC", proto.AllocationID{1}); !ok || err != nil {
		t.Errorf("PutCode with an ended context: %v, %v", ok, err)
	}
	if _, err := m.HostOf(ctx, tenant, "6789BC"); err != nil {
		t.Errorf("HostOf with an ended context: %v", err)
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	m := alloc.NewMemoryStore()
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	host, other := proto.AllocationID{1}, proto.AllocationID{2}
	if !m.Restore(tenant.Hash(), "6789BC", host) {
		t.Fatal("Restore = false")
	}
	for name, stored := range map[string]bool{
		"code taken":    m.Restore(tenant.Hash(), "6789BC", other),
		"host has one":  m.Restore(tenant.Hash(), "DFGHJK", host),
		"too short":     m.Restore(tenant.Hash(), "6789B", other),
		"empty":         m.Restore(tenant.Hash(), "", other),
		"not a code":    m.Restore(tenant.Hash(), "AEIOUA", other),
		"in lower case": m.Restore(tenant.Hash(), "6789bc", other),
	} {
		if stored {
			t.Errorf("%s: Restore = true", name)
		}
	}
	if got, err := m.HostOf(t.Context(), tenant, "6789BC"); err != nil || got != host {
		t.Errorf("HostOf = %v, %v", got, err)
	}
	if got, err := m.CodeOf(t.Context(), tenant, host); err != nil || got != "6789BC" {
		t.Errorf("CodeOf = %q, %v", got, err)
	}
	if got, err := m.Codes(t.Context(), tenant); err != nil || got != 1 {
		t.Errorf("Codes = %d, %v", got, err)
	}
	if ok, err := m.PutCode(t.Context(), tenant, "6789B", other); ok || !errors.Is(err, alloc.ErrCodeMalformed) {
		t.Errorf("PutCode of no code = %v, %v", ok, err)
	}
	if _, err := m.HostOf(t.Context(), tenant, "6789B"); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("HostOf no code: %v", err)
	}
}

func ExampleMemoryStore() {
	ctx := context.Background()
	m := alloc.NewMemoryStore()
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	host := proto.AllocationID{0: 0xA0, 15: 1}

	stored, _ := m.PutCode(ctx, tenant, "6789BC", host)
	found, _ := m.HostOf(ctx, tenant, "6789BC")
	fmt.Println(stored, found == host)

	m.Forget(host)
	_, err := m.HostOf(ctx, tenant, "6789BC")
	fmt.Println(err)
	// Output:
	// true true
	// alloc: join code not found
}
