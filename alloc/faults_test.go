package alloc_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
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
	relay := newFakeRelay()
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
