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

func TestMemoryStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) alloc.Store { return alloc.NewMemoryStore() })
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

func ExampleNewMemoryStore() {
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

func TestMemoryStoreMalformed(t *testing.T) {
	t.Parallel()
	m := alloc.NewMemoryStore()
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	if ok, err := m.PutCode(t.Context(), tenant, "6789B", proto.AllocationID{1}); ok || !errors.Is(err, alloc.ErrCodeMalformed) {
		t.Errorf("PutCode of no code = %v, %v", ok, err)
	}
	if _, err := m.HostOf(t.Context(), tenant, "6789B"); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("HostOf no code: %v", err)
	}
}
