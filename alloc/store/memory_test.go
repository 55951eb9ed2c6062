package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/store"
	"github.com/ferryrelay/ferry/alloc/store/storetest"
	"github.com/ferryrelay/ferry/proto"
)

var _ alloc.Store = (*store.Memory)(nil)

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) alloc.Store { return store.NewMemory() })
}

// TestMemoryIgnoresContext: an answer from memory waits for nothing that a
// context could cut short.
func TestMemoryIgnoresContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := store.NewMemory()
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	if ok, err := m.PutCode(ctx, tenant, "6789BC", proto.AllocationID{1}); !ok || err != nil {
		t.Errorf("PutCode with an ended context: %v, %v", ok, err)
	}
	if _, err := m.HostOf(ctx, tenant, "6789BC"); err != nil {
		t.Errorf("HostOf with an ended context: %v", err)
	}
}

func ExampleMemory() {
	ctx := context.Background()
	m := store.NewMemory()
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
