package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func serverCalls(s *engine.Server, host proto.AllocationID) map[string]func(context.Context) error {
	const code = "BCDFGH"
	return map[string]func(context.Context) error{
		"ReserveHost": func(ctx context.Context) error {
			_, err := s.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, MaxConnections: 1})
			return err
		},
		"ReserveJoiner": func(ctx context.Context) error {
			_, err := s.ReserveJoiner(ctx, alloc.JoinerRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host})
			return err
		},
		"Describe": func(ctx context.Context) error { _, err := s.Describe(ctx, host); return err },
		"KeepCode": func(ctx context.Context) error { return s.Private().KeepCode(ctx, host, code) },
		"LeaveHost": func(ctx context.Context) error {
			return s.LeaveHost(ctx, alloc.LeaveRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host})
		},
		"End":             func(ctx context.Context) error { return s.End(ctx, host) },
		"Kick":            func(ctx context.Context) error { return s.Kick(ctx, host) },
		"SetMaxSeats":     func(ctx context.Context) error { return s.SetMaxSeats(ctx, 1) },
		"SetPlayerLimits": func(ctx context.Context) error { return s.SetPlayerLimits(ctx, engine.PlayerLimits{Hosts: 1}) },
		"Drain":           func(ctx context.Context) error { return s.Drain(ctx, engine.DrainConfig{}) },
		"Undrain":         s.Undrain,
		"Usage":           func(ctx context.Context) error { _, err := s.Usage(ctx); return err },
		"Projects":        func(ctx context.Context) error { _, err := s.Private().Projects(ctx); return err },
		"Allocations":     func(ctx context.Context) error { _, _, err := s.Allocations(ctx, engine.Filter{}, 0, 0); return err },
		"Presence":        func(ctx context.Context) error { _, _, err := s.Private().Presence(ctx, host); return err },
		"PrepareHandOver": func(ctx context.Context) error {
			o, err := s.Private().PrepareHandOver(ctx)
			if err == nil {
				o.Close()
			}
			return err
		},
		"HandOver": func(ctx context.Context) error { return s.Private().HandOver(ctx, io.Discard) },
		"Capture": func(ctx context.Context) error {
			_, err := s.Private().Capture(ctx, host, func(*privateapi.Captured) error { return nil })
			return err
		},
	}
}

// TestCallsBeforeRun: a call before Run returns ErrNotRunning at once, and Run does not make up
// for it. After Run it is the same error.
func TestCallsBeforeRun(t *testing.T) {
	t.Parallel()
	var events received
	hooks := events.hooks()
	hooks.OnReserve = func(engine.ReserveEvent) { events.add("reserve") }
	s := newServer(t, engine.Config{HostMigration: engine.HostMigration{Window: time.Minute}, Hooks: hooks})
	wantErrors := func(when string) {
		for name, call := range serverCalls(s, proto.AllocationID{1}) {
			if err := call(context.Background()); !errors.Is(err, engine.ErrNotRunning) || !errors.Is(err, alloc.ErrUnavailable) {
				t.Errorf("%s %s: %v", name, when, err)
			}
		}
	}
	for range 100 { // more than the queue of calls holds
		wantErrors("before Run")
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	<-s.Ready()
	if _, err := s.Usage(t.Context()); err != nil {
		t.Error(err)
	}
	if st := s.Stats(); st.Allocations != 0 || st.Draining || len(events.events) > 0 {
		t.Errorf("%d allocations, draining %v, events %q", st.Allocations, st.Draining, events.events)
	}
	if err := reserveHost(&enginetest.Relay{Server: s}); err != nil {
		t.Error("SetMaxSeats took effect: ", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	wantErrors("after Run")
}

func TestCallsOfEndedContexts(t *testing.T) {
	t.Parallel()
	r := enginetest.Start(t, engine.Config{HostMigration: engine.HostMigration{Window: time.Minute}})
	host := r.Host("host", 4)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer cancel()
	for range 1000 {
		for name, call := range serverCalls(r.Server, host.ID) {
			for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: expired} {
				if err := call(ctx); !errors.Is(err, want) || !errors.Is(err, alloc.ErrUnavailable) {
					t.Fatalf("%s: %v, want %v", name, err, want)
				}
			}
		}
	}
	if _, err := r.Describe(t.Context(), host.ID); err != nil {
		t.Error("the host has ended: ", err)
	}
	if st := r.Stats(); st.Allocations != 1 || st.Draining || r.Ended() {
		t.Errorf("%d allocations, draining %v, ended %v", st.Allocations, st.Draining, r.Ended())
	}
	r.Host("another", 4) // SetMaxSeats and SetPlayerLimits had no effect either.
}

// TestCallsCancelledInFlight: a cancelled call either succeeds or has no effect.
func TestCallsCancelledInFlight(t *testing.T) {
	t.Parallel()
	var reserved atomic.Int64
	r := enginetest.Start(t, engine.Config{Timeouts: engine.Timeouts{Bind: time.Hour},
		Hooks: engine.Hooks{OnReserve: func(engine.ReserveEvent) {
			reserved.Add(1)
			for range reserved.Load() % 200 {
				runtime.Gosched()
			}
		}}})
	var granted, refused atomic.Int64
	var callers sync.WaitGroup
	for n := range 200 {
		callers.Go(func() {
			for k := range 20 {
				ctx, cancel := context.WithCancel(context.Background())
				callers.Go(func() {
					for range (n*7 + k*13) % 300 {
						runtime.Gosched()
					}
					cancel()
				})
				res, err := r.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, MaxConnections: 1})
				switch {
				case err == nil:
					granted.Add(1)
				case res.ID != proto.AllocationID{} || res.Key != proto.Key{}:
					t.Errorf("a reservation of %v with %v", res.ID, err)
				default:
					refused.Add(1)
				}
			}
		})
	}
	callers.Wait()
	if _, err := r.Usage(t.Context()); err != nil { // All calls before it are over.
		t.Fatal(err)
	}
	if n := int64(r.Stats().Allocations); n != granted.Load() || reserved.Load() != n {
		t.Errorf("%d calls succeeded and %d failed; %d allocations, %d hooks", granted.Load(), refused.Load(), n, reserved.Load())
	}
}

// TestAllocateCancelled: cancelled calls leave neither allocations nor outstanding reservations.
func TestAllocateCancelled(t *testing.T) {
	t.Parallel()
	r := enginetest.Start(t, engine.Config{Timeouts: engine.Timeouts{Bind: time.Hour}, Region: "home"})
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay: r, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}}, MaxOutstanding: 3, BindTimeout: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	player := alloc.Caller{Tenant: enginetest.Tenant, Player: "p", Individual: true}
	for range 500 {
		if _, err := service.Allocate(cancelled, player, 1, ""); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	for n := range 4 {
		if _, err := service.Allocate(t.Context(), player, 1, ""); (err == nil) != (n < 3) {
			t.Errorf("reservation %d: %v", n, err)
		}
	}
	if n := r.Stats().Allocations; n != 3 {
		t.Errorf("%d allocations, want 3", n)
	}
}

// TestDrainEnds: a drain whose deadline has passed ends with allocations, and one with a negative
// threshold when none is left.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]engine.DrainConfig{
		"past deadline":           {Deadline: -time.Second},
		"past deadline, in ns":    {Deadline: -1},
		"deadline of less than 1": {Deadline: 1},
	} {
		r := enginetest.Start(t, engine.Config{})
		r.Host("host", 4)
		drain(t, r, cfg)
		testkit.Eventually(t, name, r.Ended)
	}
	r := enginetest.Start(t, engine.Config{})
	host := r.Host("host", 4)
	drain(t, r, engine.DrainConfig{Threshold: -1})
	if err := reserveHost(r); !errors.Is(err, alloc.ErrDraining) {
		t.Errorf("a host while it drains: %v", err)
	}
	if err := r.End(t.Context(), host.ID); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the drain with a threshold of -1 ends", r.Ended)
}

// TestCallsInHook: every call from inside a hook, of this server or another one, returns
// alloc.ErrInHook, and the relay goes on.
func TestCallsInHook(t *testing.T) {
	t.Parallel()
	other := enginetest.Start(t, engine.Config{})
	var r *enginetest.Relay
	errs := make(chan error, 100)
	call := func() {
		for _, s := range []*engine.Server{r.Server, other.Server} {
			for name, call := range serverCalls(s, proto.AllocationID{1}) {
				if err := call(context.Background()); !errors.Is(err, alloc.ErrInHook) {
					errs <- fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		errs <- nil
	}
	r = enginetest.Start(t, engine.Config{HostMigration: engine.HostMigration{Window: time.Minute}, Hooks: engine.Hooks{
		Admit:     func(string, int, int) error { call(); return nil },
		OnReserve: func(engine.ReserveEvent) { call() },
		OnEnd:     func(engine.EndEvent) { call() },
	}})
	host := r.Host("host", 4)
	if err := r.End(t.Context(), host.ID); err != nil {
		t.Error(err)
	}
	for range 3 {
		for err := range errs {
			if err == nil {
				break
			}
			t.Error(err)
		}
	}
}

// TestHookWaits: a hook that waits for another goroutine, which calls the server, gets the relay
// back after a while, and the log names the hook.
func TestHookWaits(t *testing.T) {
	t.Parallel()
	var log testkit.LogBuffer
	var r *enginetest.Relay
	result := make(chan error, 1)
	logger := slog.New(slog.NewTextHandler(&log, nil))
	r = enginetest.Start(t, engine.Config{Logger: logger, Hooks: engine.Hooks{OnReserve: func(engine.ReserveEvent) {
		done := make(chan error)
		go func() {
			_, err := r.Usage(context.Background())
			done <- err
		}()
		result <- <-done
	}}})
	r.Host("host", 4)
	if err := <-result; !errors.Is(err, alloc.ErrInHook) || !strings.Contains(err.Error(), "OnReserve") {
		t.Errorf("the call of the hook's goroutine: %v", err)
	}
	if _, err := r.Usage(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if strings.Count(log.String(), "hook=OnReserve") != 2 {
		t.Errorf("want two lines, while it waits and afterwards:\n%s", log.String())
	}
}

// TestHookPanics: a hook that panics neither ends the relay nor takes a slot, and the log names
// it with its stack, once in a while.
func TestHookPanics(t *testing.T) {
	t.Parallel()
	var log testkit.LogBuffer
	r := enginetest.Start(t, engine.Config{MaxAllocations: 1, Logger: slog.New(slog.NewTextHandler(&log, nil)), Hooks: engine.Hooks{
		Admit: func(project string, _, _ int) error {
			if project == "bad" {
				panic("no such project")
			}
			return nil
		},
		OnReserve: func(engine.ReserveEvent) { panic("no such host") },
	}})
	for range 10 {
		_, err := r.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: alloc.Tenant{Project: "bad"}}, MaxConnections: 1})
		if !errors.Is(err, alloc.ErrUnavailable) {
			t.Fatalf("a reservation whose Admit panicked: %v", err)
		}
	}
	host := r.Host("host", 1) // It has the only slot, and is returned in spite of OnReserve.
	if err := r.End(t.Context(), host.ID); err != nil {
		t.Error(err)
	}
	text := log.String()
	for _, want := range []string{"hook=Admit", "no such project", "hook=OnReserve", "no such host", "calls_test.go"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the log:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "hook=Admit"); n != 1 {
		t.Errorf("10 panics are %d lines", n)
	}
}

// TestAdmitErrorIsLogged: an error of the program's own refuses the reservation, and the log has it.
func TestAdmitErrorIsLogged(t *testing.T) {
	t.Parallel()
	var log testkit.LogBuffer
	own := errors.New("the database of projects is away")
	r := enginetest.Start(t, engine.Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Hooks: engine.Hooks{
		Admit: func(project string, _, _ int) error {
			if project == "full" {
				return alloc.ErrProjectQuota
			}
			return own
		},
	}})
	for project, want := range map[string]error{"full": alloc.ErrProjectQuota, "other": own, "third": own} {
		_, err := r.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: alloc.Tenant{Project: project}}, MaxConnections: 1})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", project, err)
		}
	}
	text := log.String()
	if strings.Count(text, "hook=Admit") != 1 || !strings.Contains(text, own.Error()) || strings.Contains(text, "quota") {
		t.Errorf("the log:\n%s", text)
	}
}

// TestHookGoexit: a hook that ends its goroutine ends Run with an error.
func TestHookGoexit(t *testing.T) {
	t.Parallel()
	s := newServer(t, engine.Config{Hooks: engine.Hooks{OnReserve: func(engine.ReserveEvent) { runtime.Goexit() }}})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background()) }()
	<-s.Ready()
	_, _ = s.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, MaxConnections: 1})
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "hook") {
		t.Errorf("Run returned %v", err)
	}
}

type faultyTransport struct{ run func(context.Context) error }

func (faultyTransport) Name() string                                     { return "faulty" }
func (faultyTransport) Send(uint64, []byte) bool                         { return false }
func (faultyTransport) IsOpen(uint64) bool                               { return false }
func (faultyTransport) MaxMessage() int                                  { return 1500 }
func (f faultyTransport) Run(ctx context.Context, _ engine.Intake) error { return f.run(ctx) }

// TestTransportEnds: a transport that fails, panics or returns early ends Run with an error that
// names it.
func TestTransportEnds(t *testing.T) {
	t.Parallel()
	for want, run := range map[string]func(context.Context) error{
		"no memory":     func(context.Context) error { panic("no memory") },
		"Run returned":  func(context.Context) error { return nil },
		"port is taken": func(context.Context) error { return errors.New("port is taken") },
		"exceeded":      func(context.Context) error { return context.DeadlineExceeded },
		"canceled":      func(context.Context) error { return context.Canceled },
		"Run returned ": func(context.Context) error { runtime.Goexit(); return nil },
	} {
		var log testkit.LogBuffer
		s := newServer(t, engine.Config{Transports: []engine.Transport{faultyTransport{run}}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		err := s.Run(context.Background())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "faultyTransport") {
			t.Errorf("%s: Run returned %v", want, err)
		}
		if want == "no memory" && !strings.Contains(log.String(), "stack=") {
			t.Errorf("the log has no stack:\n%s", log.String())
		}
	}
}

// TestTransportCalls: a transport may wait for a call when Run ends.
func TestTransportCalls(t *testing.T) {
	t.Parallel()
	var s *engine.Server
	result := make(chan error, 1)
	s = newServer(t, engine.Config{Transports: []engine.Transport{faultyTransport{func(ctx context.Context) error {
		<-ctx.Done()
		for {
			if _, err := s.Usage(context.Background()); err != nil {
				result <- err
				return nil
			}
		}
	}}}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	<-s.Ready()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, engine.ErrNotRunning) {
		t.Error(err)
	}
}
