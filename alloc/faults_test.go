package alloc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/proto"
)

func TestHookPanics(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var panics string
	hook := func(name string) {
		if panics == name {
			panic("the quota is broken")
		}
	}
	relay := alloctest.NewRelay()
	s, err := alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}}, MaxOutstanding: 1,
		Logger:    slog.New(slog.NewTextHandler(&log, nil)),
		Admit:     func(context.Context, alloc.AdmissionRequest) error { hook("Admit"); return nil },
		OnReserve: func(alloc.ReservationEvent) { hook("OnReserve") },
		KeepCode:  func(context.Context, proto.AllocationID, string) error { hook("KeepCode"); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		panics = "Admit"
		if _, err := s.Allocate(t.Context(), alice, 1, ""); !errors.Is(err, alloc.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	panics = "OnReserve"
	res, err := s.Allocate(t.Context(), alice, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	panics = "KeepCode"
	if _, err := s.JoinCode(t.Context(), alice, res.ID); !errors.Is(err, alloc.ErrUnavailable) {
		t.Error(err)
	}
	panics = ""
	if _, err := s.JoinCode(t.Context(), alice, res.ID); err != nil {
		t.Error("the code is lost: ", err)
	}
	for _, want := range []string{"hook=Admit", "hook=OnReserve", "hook=KeepCode", "the quota is broken", "faults_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, log.String())
		}
	}
}

// TestAdmitErrorIsLogged: the caller learns nothing of an error of the program's own, so the log has
// it, once in a while.
func TestAdmitErrorIsLogged(t *testing.T) {
	t.Parallel()
	gone := errors.New("the database of players is away")
	for _, c := range []struct {
		name   string
		err    error
		logged bool
	}{
		{"own", gone, true},
		{"unavailable", fmt.Errorf("%w: %w", alloc.ErrUnavailable, gone), true},
		{"deadline", fmt.Errorf("%w: %w", context.DeadlineExceeded, gone), true},
		{"quota", alloc.ErrProjectQuota, false},
		{"inactive", alloc.ErrProjectInactive, false},
		{"denied", alloc.RefusedError{Err: alloc.ErrDenied, Reason: "banned"}, false},
		{"admission", fmt.Errorf("%w: %w", alloc.ErrAdmissionUnavailable, gone), false}, // logged by the program that asks
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			s, err := alloc.NewService(alloc.ServiceConfig{
				Relay: alloctest.NewRelay(), Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}},
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Admit:  func(context.Context, alloc.AdmissionRequest) error { return c.err },
			})
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if _, err := s.Allocate(t.Context(), alice, 1, ""); !errors.Is(err, c.err) {
					t.Fatal(err)
				}
			}
			want := 0
			if c.logged {
				want = 1
			}
			if n := strings.Count(log.String(), "hook=Admit"); n != want || c.logged && !strings.Contains(log.String(), gone.Error()) {
				t.Errorf("%d lines, want %d:\n%s", n, want, log.String())
			}
		})
	}
	t.Run("a caller that left", func(t *testing.T) {
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		s, err := alloc.NewService(alloc.ServiceConfig{
			Relay: alloctest.NewRelay(), Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Admit:  func(ctx context.Context, _ alloc.AdmissionRequest) error { cancel(); return ctx.Err() },
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Allocate(ctx, alice, 1, ""); !errors.Is(err, context.Canceled) || log.Len() > 0 {
			t.Errorf("%v, and the log has %q", err, log.String())
		}
	})
}
