package process

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/base/periodic"
)

const (
	// usageReadEvery is how often the usage is read, which bounds what a crash of the relay
	// alone loses, and with each of so many reads it is written, which bounds what a crash of
	// the process loses.
	usageReadEvery = 10 * time.Second
	writeReads     = 6
	// readWithin bounds the last reading.
	readWithin = 2 * time.Second
	// maxKeptTenants bounds the file to some 2 MB. The rest counts for the others.
	maxKeptTenants = 10_000
)

type keptUsage struct {
	Tenant        uint64  `json:"tenant"` // alloc.Tenant.Hash; 0: the others
	Project       string  `json:"project,omitempty"`
	Environment   string  `json:"environment,omitempty"`
	PlayerSeconds float64 `json:"player_seconds"`
	Datagrams     uint64  `json:"datagrams"`
	Bytes         uint64  `json:"bytes"`
}

type usageFile struct {
	Since   time.Time   `json:"since"`
	Tenants []keptUsage `json:"tenants"`
}

// usageKeeper adds what earlier runs have used to the usage of the relay, and writes the sum
// to a file. Any goroutine may call Usage.
type usageKeeper struct {
	relay  usageRelay
	file   string // empty: nothing is kept
	log    *slog.Logger
	since  time.Time
	before map[uint64]keptUsage // of earlier runs, by tenant; fixed before Run

	mu     sync.Mutex // guards what follows
	last   []engine.Usage
	failed bool // the last write failed
}

type usageRelay interface {
	Usage(context.Context) ([]engine.Usage, error)
}

func newUsageKeeper(file string, now time.Time, relay usageRelay, log *slog.Logger) *usageKeeper {
	return &usageKeeper{relay: relay, file: file, log: log, since: now, before: map[uint64]keptUsage{}}
}

// load reads the file, before Run. One that cannot be read is moved aside, so that nothing is
// lost.
func (k *usageKeeper) load() error {
	file, log := k.file, k.log
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var kept usageFile
	if err == nil {
		err = json.Unmarshal(content, &kept)
	}
	if err != nil {
		aside := file + ".damaged"
		log.Error("the usage of earlier runs cannot be read, and begins at zero", "file", file, "moved_to", aside, "error", err)
		if err := os.Rename(file, aside); err != nil {
			return fmt.Errorf("usage: %w", err)
		}
		return nil
	}
	k.since = kept.Since
	for _, u := range kept.Tenants {
		k.before[u.Tenant] = u
	}
	return nil
}

// Usage returns the usage of all runs, in the order of engine.Server.Usage.
func (k *usageKeeper) Usage(ctx context.Context) ([]engine.Usage, error) {
	all, err := k.relay.Usage(ctx)
	if err != nil {
		return nil, err
	}
	return k.sum(all), nil
}

func (k *usageKeeper) sum(all []engine.Usage) []engine.Usage {
	seen := make(map[uint64]bool, len(all))
	for i := range all {
		u := &all[i]
		seen[u.Tenant] = true
		b := k.before[u.Tenant]
		u.PlayerSeconds += b.PlayerSeconds
		u.Datagrams += b.Datagrams
		u.Bytes += b.Bytes
		if u.Name == (alloc.Tenant{}) {
			u.Name = alloc.Tenant{Project: b.Project, Environment: b.Environment}
		}
	}
	began := len(all)
	for tenant, b := range k.before {
		if !seen[tenant] {
			all = append(all, engine.Usage{
				Tenant: tenant, Name: alloc.Tenant{Project: b.Project, Environment: b.Environment}, Others: tenant == 0,
				PlayerSeconds: b.PlayerSeconds, Datagrams: b.Datagrams, Bytes: b.Bytes,
			})
		}
	}
	slices.SortFunc(all[began:], func(a, b engine.Usage) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return all
}

// run reads and writes the usage until ctx ends, and once more then. The relay must still run.
func (k *usageKeeper) run(ctx context.Context) error {
	reads := 0
	periodic.Run(ctx, usageReadEvery, func() {
		k.read(ctx)
		if reads++; reads%writeReads == 0 || k.hasFailed() {
			k.write()
		}
	})
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWithin)
	defer cancel()
	k.read(within)
	k.write()
	return nil
}

// read keeps the usage for the next write. A relay that has stopped leaves what was read last.
func (k *usageKeeper) read(ctx context.Context) {
	all, err := k.Usage(ctx)
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = all
}

// latest returns what was read last, which the caller must not change.
func (k *usageKeeper) latest() []engine.Usage {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// write writes what was read last. It logs the first failure of several.
func (k *usageKeeper) write() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == "" || k.last == nil {
		return
	}
	content, err := json.Marshal(usageFile{Since: k.since, Tenants: keptOf(k.last)})
	if err == nil {
		err = keyfile.Write(k.file, content)
	}
	if err != nil && !k.failed {
		k.log.Error("the usage is not kept for the next run", "file", k.file, "error", err)
	}
	if err == nil && k.failed {
		k.log.Info("the usage is kept again", "file", k.file)
	}
	k.failed = err != nil
}

func (k *usageKeeper) hasFailed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed
}

func keptOf(all []engine.Usage) (kept []keptUsage) {
	var others keptUsage
	ordered := slices.Clone(all)
	slices.SortStableFunc(ordered, func(a, b engine.Usage) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for _, u := range ordered {
		if u.Others || len(kept) == maxKeptTenants {
			others.PlayerSeconds += u.PlayerSeconds
			others.Datagrams += u.Datagrams
			others.Bytes += u.Bytes
			continue
		}
		kept = append(kept, keptUsage{u.Tenant, u.Name.Project, u.Name.Environment, u.PlayerSeconds, u.Datagrams, u.Bytes})
	}
	if others != (keptUsage{}) {
		kept = append(kept, others)
	}
	return kept
}

type relayPages struct {
	*engine.Server
	usage *usageKeeper
}

func (p relayPages) Usage(ctx context.Context) ([]engine.Usage, error) { return p.usage.Usage(ctx) }
