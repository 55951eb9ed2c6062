package probe

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines hands on what is printed.
type lines chan Line

func (l lines) Write(b []byte) (int, error) {
	var line Line
	err := json.Unmarshal(b, &line)
	l <- line
	return len(b), err
}

func options() Options {
	return Options{Speak: Netcode, TickRate: 200, JSON: true, Send: 100}
}

// TestRunLeavesNothing: a server that is interrupted tells its client, and
// nothing of either runs then, which goleak looks at.
func TestRunLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stop, interrupt := context.WithCancel(ctx)
	served, played := make(lines, 100), make(lines, 100)
	var work sync.WaitGroup
	defer work.Wait()
	o := options()
	o.Listen = netip.MustParseAddrPort("127.0.0.1:0")
	work.Go(func() {
		if err := Run(stop, served, o); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	at := (<-served).Address
	c := options()
	c.Connect = netip.MustParseAddrPort(at)
	work.Go(func() {
		if err := Run(ctx, played, c); err != nil {
			t.Errorf("client: %v", err)
		}
		close(played)
	})
	for line := range played {
		if line.State == "connected" {
			interrupt()
		}
	}
	interrupt()
	if ctx.Err() != nil {
		t.Error("it took until the time was up")
	}
}

// full is a disk without room.
type full struct{}

var errFull = errors.New("no room")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestRunCannotPrint(t *testing.T) {
	o := options()
	o.Listen = netip.MustParseAddrPort("127.0.0.1:0")
	if err := Run(t.Context(), full{}, o); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
}

func TestLineText(t *testing.T) {
	l := Line{
		Event: "state", Connection: "#1", State: "disconnected", NetworkID: 3, Reason: "closed by remote",
		PeerReason: "approval failure", PeerText: "no",
		Stats: &Stats{Sent: 1, SentBytes: 2, Resent: 3, Drops: map[string]uint64{"late": 4, "kind": 5}},
	}
	want := `state  #1  disconnected  as player 3  because: closed by remote  (the peer says: approval failure: "no")  ` +
		`sent 1 (2 B)  received 0 (0 B)  resent 3  duplicates 0  dropped kind 5, late 4`
	if got := l.text(); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
	if strings.Contains((Stats{}).text(), "stream") {
		t.Error("what did not happen is shown")
	}
}
