package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/enginetest"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// drainMatch is a host and a player on a relay.
func drainMatch(t *testing.T, cfg engine.Config) (r *enginetest.Relay, host, p *enginetest.UTP) {
	t.Helper()
	r = enginetest.Start(t, cfg)
	res := r.Host("host", 4)
	host = player(t, r, enginetest.UTP2, res)
	testkit.Eventually(t, "the host is bound", host.HasStatus(enginetest.Established))
	return r, host, drainJoin(t, r, "p", host)
}

func drainJoin(t *testing.T, r *enginetest.Relay, name string, host *enginetest.UTP) *enginetest.UTP {
	t.Helper()
	p := player(t, r, enginetest.UTP2, r.Joiner(name, host.Cred.ID))
	testkit.Eventually(t, name+" is bound", p.HasStatus(enginetest.Established))
	p.Connect()
	testkit.Eventually(t, name+" is let in", p.HasPeers(1))
	p.Send(host.Cred.ID, "hello from "+name)
	testkit.Eventually(t, "the host hears", host.HasReceived(p.Cred.ID, "hello from "+name))
	return p
}

func drain(t *testing.T, r *enginetest.Relay, cfg engine.DrainConfig) {
	t.Helper()
	if err := r.Drain(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
}

func reserveHost(r *enginetest.Relay) error {
	_, err := r.ReserveHost(context.Background(), alloc.HostRequest{Tenant: enginetest.Tenant, MaxConnections: 4})
	return err
}

// closes lets a player end its allocation.
func closes(u *enginetest.UTP) {
	u.SetPaused(true)
	u.Inject(slices.Concat([]byte{0xDA, 0x72, 0, 11}, u.Cred.ID[:]))
}

// TestDrain: a relay that runs dry takes no hosts, still takes players for
// those that live, relays as before, and ends by itself with the last one.
func TestDrain(t *testing.T) {
	t.Parallel()
	r, host, p := drainMatch(t, engine.Config{})
	if r.Draining() {
		t.Error("it drains from the start")
	}
	drain(t, r, engine.DrainConfig{})
	if err := reserveHost(r); !errors.Is(err, alloc.ErrDraining) || !r.Draining() {
		t.Errorf("a host while it drains: %v", err)
	}
	late := drainJoin(t, r, "late", host)
	host.Send(p.Cred.ID, "go on")
	testkit.Eventually(t, "the first player still hears", p.HasReceived(host.Cred.ID, "go on"))
	closes(p)
	closes(late)
	testkit.Eventually(t, "both have left", func() bool { return r.Stats().Allocations == 1 })
	if r.Ended() {
		t.Fatal("it ended with a host alive")
	}
	closes(host)
	testkit.Eventually(t, "it ends by itself", r.Ended)
	r.Stop() // checks that Run returned nil
	if err := r.Drain(context.Background(), engine.DrainConfig{}); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("Drain after the end: %v", err)
	}
}

// TestDrainEmpty: a relay without anybody ends at once.
func TestDrainEmpty(t *testing.T) {
	t.Parallel()
	r := enginetest.Start(t, engine.Config{})
	drain(t, r, engine.DrainConfig{Deadline: time.Hour})
	testkit.Eventually(t, "it ends", r.Ended)
}

// TestDrainDeadline: at the deadline it ends, whoever is there, and not before.
func TestDrainDeadline(t *testing.T) {
	t.Parallel()
	const deadline = 700 * time.Millisecond
	r, _, _ := drainMatch(t, engine.Config{})
	begun := time.Now()
	drain(t, r, engine.DrainConfig{Deadline: deadline})
	testkit.Eventually(t, "it ends", r.Ended)
	if took := time.Since(begun); took < deadline-10*time.Millisecond {
		t.Errorf("it ended after %v", took)
	}
	if n := r.Stats().Allocations; n != 2 {
		t.Errorf("%d allocations at the deadline", n)
	}
}

// TestDrainThreshold: it ends when no more than so many are left.
func TestDrainThreshold(t *testing.T) {
	t.Parallel()
	r, host, p := drainMatch(t, engine.Config{})
	q := drainJoin(t, r, "q", host)
	drain(t, r, engine.DrainConfig{Deadline: time.Hour, Threshold: 1})
	closes(q)
	testkit.Eventually(t, "one has left", func() bool { return r.Stats().Allocations == 2 })
	host.Send(p.Cred.ID, "still here")
	testkit.Eventually(t, "the others play on", p.HasReceived(host.Cred.ID, "still here"))
	if r.Ended() {
		t.Fatal("it ended with two left")
	}
	closes(p)
	testkit.Eventually(t, "it ends with one left", r.Ended)
}

// TestUndrain: it takes hosts again, and neither deadline nor emptiness ends it.
// A second drain replaces what the first one said.
func TestUndrain(t *testing.T) {
	t.Parallel()
	r, host, p := drainMatch(t, engine.Config{})
	const first = 5 * time.Second // long enough that a busy machine gets to the second
	over := time.After(first + 100*time.Millisecond)
	drain(t, r, engine.DrainConfig{Deadline: first})
	drain(t, r, engine.DrainConfig{Deadline: time.Hour})
	if err := reserveHost(r); !errors.Is(err, alloc.ErrDraining) {
		t.Errorf("a host while it drains: %v", err)
	}
	if err := r.Undrain(context.Background()); err != nil || r.Draining() {
		t.Errorf("Undrain: %v, drains: %v", err, r.Draining())
	}
	closes(host)
	closes(p)
	testkit.Eventually(t, "all have left", func() bool { return r.Stats().Allocations == 0 })
	<-over
	if r.Ended() {
		t.Fatal("it ended although it does not drain")
	}
	if err := reserveHost(r); err != nil {
		t.Errorf("a host afterwards: %v", err)
	}
}

// TestDrainNeverRan: a server that was closed before it ran says so.
func TestDrainNeverRan(t *testing.T) {
	srv := newServer(t, engine.Config{})
	srv.Close()
	if err := srv.Drain(context.Background(), engine.DrainConfig{}); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("Drain: %v", err)
	}
	if err := srv.Undrain(context.Background()); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("Undrain: %v", err)
	}
}
