package memory

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/base/periodic"
)

// Config says what a [Guard] watches. Every field is required.
type Config struct {
	// Limit returns the limit that holds now. It is asked again every 10 s, as
	// limits of containers can be changed while they run.
	Limit func() Limit
	// Used returns the bytes that cannot be done without.
	Used func() int64
	// Soften sets the use in bytes at which the runtime collects at any cost.
	Soften      func(bytes int64)
	Collect     func()
	Allocations func() int
	// Logger gets a line when refusing begins and ends.
	Logger *slog.Logger
}

// OfProcess watches this process.
func OfProcess(allocations func() int, log *slog.Logger) Config {
	return Config{
		Limit: ProcessLimit, Used: used, Soften: soften, Collect: runtime.GC,
		Allocations: allocations, Logger: log,
	}
}

// ProcessLimit returns the limit of this process.
func ProcessLimit() Limit {
	own, _ := operatorsLimit()
	return ReadLimit(rootFS(), own)
}

func rootFS() fs.FS { return os.DirFS("/") }

// soften sets the limit of Go's runtime, unless the operator did.
func soften(bytes int64) {
	if _, set := operatorsLimit(); !set {
		debug.SetMemoryLimit(bytes)
	}
}

const (
	// lookEvery is the time between two looks at the use. In that time the API
	// makes a few thousand allocations at the most, 1 MiB.
	lookEvery = 250 * time.Millisecond
	// idleEvery is the time while their number stays the same.
	idleEvery = time.Second
	// slowly is the time between two looks at the limit, and between two
	// collections while allocations are refused.
	slowly = 10 * time.Second
)

// Guard says whether the memory suffices for one more allocation. Any goroutine may use it.
type Guard struct {
	cfg     Config
	limit   atomic.Int64
	tight   atomic.Bool
	peak    atomic.Int64 // most allocations ever seen
	refused atomic.Uint64
	began   time.Time // of refusing; Run's
	before  uint64    // refused by then; Run's
}

// NewGuard reads the limit and sets the soft one. Nothing runs before Run.
func NewGuard(cfg Config) *Guard {
	g := &Guard{cfg: cfg}
	g.reread()
	return g
}

// Stats are what a [Guard] has seen.
type Stats struct {
	Limit   int64  // bytes; 0: unknown
	Tight   bool   // allocations are refused
	Refused uint64 // allocations ever refused
}

// Stats returns what the guard has seen.
func (g *Guard) Stats() Stats {
	return Stats{Limit: g.limit.Load(), Tight: g.tight.Load(), Refused: g.refused.Load()}
}

// Admit reports whether one more allocation may be made, and counts it if not.
// What earlier allocations took is not given back but used again, so those that
// replace them are always let in.
func (g *Guard) Admit() bool {
	if !g.tight.Load() || int64(g.cfg.Allocations()) < g.peak.Load() {
		return true
	}
	g.refused.Add(1)
	return false
}

// Run looks at the memory until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	every, before := idleEvery, 0
	for reread := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-periodic.Next(every):
		}
		if time.Since(reread) > slowly-lookEvery {
			reread = time.Now()
			g.reread()
			if g.tight.Load() {
				g.cfg.Collect()
			}
		}
		n := g.cfg.Allocations()
		g.look(n)
		if every = idleEvery; n != before {
			every = lookEvery
		}
		before = n
	}
}

func (g *Guard) reread() {
	l := g.cfg.Limit()
	if l.Bytes == g.limit.Swap(l.Bytes) || l.Bytes == 0 {
		return
	}
	g.cfg.Soften(soft(l.Bytes))
	g.cfg.Logger.Info("memory limit", "mib", l.Bytes/mebi, "from", l.From,
		"refuse_allocations_above_mib", line(l.Bytes)/mebi)
}

func (g *Guard) look(allocations int) {
	if n := int64(allocations); n > g.peak.Load() && !g.tight.Load() {
		g.peak.Store(n)
	}
	limit := g.limit.Load()
	if limit == 0 {
		g.tight.Store(false)
		return
	}
	used := g.cfg.Used()
	switch {
	case !g.tight.Load() && used > line(limit):
		g.tight.Store(true)
		g.began, g.before = time.Now(), g.refused.Load()
		g.cfg.Logger.Warn("memory is short: new allocations are refused, live matches continue",
			"used_mib", used/mebi, "limit_mib", limit/mebi, "allocations", allocations)
	case g.tight.Load() && used < calm(limit):
		g.tight.Store(false)
		g.cfg.Logger.Info("memory suffices again: new allocations are accepted",
			"used_mib", used/mebi, "limit_mib", limit/mebi, "refused", g.refused.Load()-g.before,
			"after", time.Since(g.began).Round(time.Second))
	}
}
