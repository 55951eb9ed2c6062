package dtls

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]Config{"MaxSessions": {MaxSessions: 1<<22 + 1}, "Idle": {Idle: -time.Second}} {
		if _, err := newLayer(c); err == nil || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestRunTwice(t *testing.T) {
	t.Parallel()
	r, err := newLayer(Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := r.Run(ctx, boundRelay{}); err != nil {
		t.Errorf("the first: %v", err)
	}
	if err := r.Run(ctx, boundRelay{}); err == nil {
		t.Error("the second is not refused")
	}
}

func TestEventNames(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for e := range numEvents {
		name := e.String()
		if name == "" || seen[name] {
			t.Errorf("event %d is named %q", e, name)
		}
		if strings.HasPrefix(name, "drop_") != (e >= dropMalformed) {
			t.Errorf("event %d is named %q", e, name)
		}
		seen[name] = true
	}
}

func TestFootprint(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	const n = 1024
	for _, c := range []struct {
		what  string
		limit int
		then  func(p *peer)
	}{
		{"handshake", 1 << 10, func(*peer) {}},
		{"handshake at its last step", 3 << 10, func(p *peer) {
			p.key[0] ^= 1
			if p.accepted(p.g.put(p.from, append(p.wrap(p.exchange()), p.finished()...))) {
				t.Fatal("a wrong key made a session")
			}
		}},
		{"session", 2 << 10, func(p *peer) {
			if !p.accepted(p.g.put(p.from, append(p.wrap(p.exchange()), p.finished()...))) {
				t.Fatal("no session")
			}
		}},
	} {
		for _, suite := range []uint16{0xA8, 0xA9} {
			t.Run(fmt.Sprintf("%s %x", c.what, suite), func(t *testing.T) {
				g := newRig(t, Config{halfOpen: 2 * n, direct: n, handshakeTimeout: 10 * time.Minute})
				before := heap()
				for i := range n {
					from := home
					from.Lo += uint64(i)
					p := newPeer(g, from, i)
					p.suites = []uint16{suite}
					if !p.start() {
						t.Fatal("no answer")
					}
					c.then(p)
				}
				each := (int64(heap()) - int64(before)) / n
				t.Logf("%d bytes each", each)
				if each > int64(c.limit) {
					t.Errorf("%d bytes each, more than %d", each, c.limit)
				}
				runtime.KeepAlive(g)
			})
		}
	}
}

// TestCloseOfZero: what no constructor has made has nothing to close.
func TestCloseOfZero(t *testing.T) {
	t.Parallel()
	if err := new(SessionFile).Close(); err != nil {
		t.Error(err)
	}
}
