package engine

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestLinkEvents: a relay sees at once that its interface goes down, comes up, is removed or
// created again, because the kernel says so: while it does, no tick reads the interfaces, and many
// changes are few reads. Where the kernel does not, each tick reads them.
func TestLinkEvents(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	create := func() {
		testkit.IP(t, "link add relay0 type veth peer name peer0")
		testkit.IP(t, "addr add 192.0.2.1/24 dev relay0")
		testkit.IP(t, "link set peer0 up")
	}
	create()
	up := func() { testkit.IP(t, "link set relay0 up") }
	down := func() { testkit.IP(t, "link set relay0 down") }
	up()
	s, err := New(Config{Listen: addrPorts("192.0.2.1:0")}, testIdentity(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sees := func(down bool) {
		t.Helper()
		testkit.Eventually(t, "the relay sees the change", func() bool { return s.control.pause.linkDown.Load() == down })
	}
	waitTick := func() {
		h := newGuardedHook("of the test")
		h.began.Store(s.shared.clock() - 2*blockingHook.Milliseconds())
		s.control.guard.running.Store(h)
		testkit.Eventually(t, "a tick", func() bool { return h.reported.Load() != 0 })
		s.control.guard.running.Store(nil)
	}
	watch := func(changes <-chan struct{}, do func()) {
		t.Helper()
		ended, watching := make(chan struct{}), sync.WaitGroup{}
		watching.Go(func() { s.watch(ended, changes) })
		waitTick() // It has read the interfaces.
		do()
		up()
		sees(false)
		close(ended)
		watching.Wait()
	}

	changes, stop := sock.LinkChanges()
	watch(changes, func() {
		var took []time.Duration
		for range 5 {
			began := time.Now()
			down()
			sees(true)
			took = append(took, time.Since(began))
			up()
			sees(false)
		}
		if fastest := slices.Min(took); fastest > 500*time.Millisecond {
			t.Errorf("seen after %v", took)
		}
		testkit.IP(t, "link del relay0")
		sees(true)
		create()
	})
	stop()

	events := make(chan struct{})
	watch(events, func() {
		down()
		waitTick()
		waitTick()
		if s.control.pause.linkDown.Load() {
			t.Error("a tick has read the interfaces")
		}
		events <- struct{}{}
		sees(true)
		began := time.Now()
		for range 4 {
			events <- struct{}{}
		}
		if took := time.Since(began); took < 3*linksGap {
			t.Errorf("the interfaces were read four times in %v", took)
		}
		up()
		events <- struct{}{}
	})

	refused := make(chan struct{})
	close(refused)
	watch(refused, func() {
		down()
		sees(true)
	})
}
