package alloc_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestHookCallsService: a hook that calls the service gets an error, and its reservation succeeds. A slow
// hook is named in the log.
func TestHookCallsService(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var clock testkit.Clock
	var service *alloc.Service
	var got []error
	caller := alloc.Caller{Tenant: alloc.Tenant{Project: "p", Environment: "e"}, Player: "anna"}
	callBack := func(ctx context.Context) {
		_, allocate := service.Allocate(ctx, caller, 1, "")
		_, join := service.Join(ctx, caller, "BCDFGH")
		_, code := service.JoinCode(ctx, caller, proto.AllocationID{1})
		_, migrate := service.Migrate(ctx, caller, "", alloc.ConnectionData{})
		got = append(got, allocate, join, code, migrate, service.Leave(ctx, caller, proto.AllocationID{1}, alloc.ConnectionData{}))
	}
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay: alloctest.NewRelay(), Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}},
		Logger: slog.New(slog.NewTextHandler(&out, nil)),
		Now:    clock.Now,
		Admit: func(ctx context.Context, _ alloc.AdmissionRequest) error {
			callBack(ctx)
			clock.Advance(3 * time.Second)
			return nil
		},
		OnReserve: func(alloc.ReservationEvent) {
			callBack(context.Background())
			clock.Advance(time.Second)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := service.Allocate(t.Context(), caller, 1, ""); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 2*2*5 {
		t.Errorf("%d calls from hooks", len(got))
	}
	for i, err := range got {
		if !errors.Is(err, alloc.ErrInHook) || !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	for _, hook := range []string{"hook=Admit took=3s", "hook=OnReserve took=1s"} {
		if strings.Count(out.String(), hook) != 1 {
			t.Errorf("want one line with %s: %s", hook, &out)
		}
	}
}
