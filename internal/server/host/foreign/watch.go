package foreign

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/base/periodic"
)

const scanInterval = 10 * time.Second

// Watch compares the sockets on the relay's addresses with our own. Its fields
// are fixed by NewWatch, but for the count.
type Watch struct {
	addrs []netip.AddrPort
	log   *slog.Logger
	proc  string
	every time.Duration
	count atomic.Int64
}

// NewWatch takes addresses with their real ports. Nothing runs before Run.
func NewWatch(addrs []netip.AddrPort, log *slog.Logger) *Watch {
	return &Watch{addrs: addrs, log: log, proc: procDir, every: scanInterval}
}

// Sockets returns how many sockets of others were there at the last look.
func (w *Watch) Sockets() int { return int(w.count.Load()) }

// Run looks every 10 s until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	w.look()
	periodic.Run(ctx, w.every, w.look)
}

func (w *Watch) look() {
	n, err := count(w.proc, w.addrs)
	if err != nil { // There may be a descriptor left the next time.
		w.log.Debug("the sockets on the UDP port cannot be read", "error", err)
		return
	}
	switch before := w.count.Swap(int64(n)); {
	case int64(n) == before:
	case n > 0:
		w.log.Error("ANOTHER PROCESS HAS A SOCKET ON THE UDP PORT and is given datagrams of players: find and end it (ss -ulpn)",
			"sockets", n, "addresses", w.addrs)
	default:
		w.log.Info("no other process has a socket on the UDP port any more", "addresses", w.addrs)
	}
}
