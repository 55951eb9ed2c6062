package app

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// keeping are options with a state file, and a log that can be read when
// nothing writes to it any more.
func keeping(file string, log *strings.Builder) Options {
	o := options(local(), Serve)
	o.StateFile, o.Logger = file, slog.New(slog.NewTextHandler(log, nil))
	return o
}

// once runs an app for as long as do takes and returns its log.
func once(t *testing.T, change func(*Options), do func(running)) string {
	t.Helper()
	var log strings.Builder
	o := keeping("", &log)
	change(&o)
	r := start(t, o)
	do(r)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return log.String()
}

func nothing(running) {}

func TestStateFileLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "allocations")
	in := func(o *Options) { o.StateFile = file }
	fresh := func(o *Options) { o.StateFile, o.Fresh = file, true }
	for _, c := range []struct {
		name   string
		change func(*Options)
		before func() error
		want   string
	}{
		{"first start", fresh, nil, `level=INFO msg="state file: new"`},
		{"second start", in, nil, `level=INFO msg="state file: complete" file=` + file + ` allocations=0 may_come_back_within=1m0s`},
		{"it was lost", in, func() error { return os.Remove(file) }, `level=WARN msg="state file: none was there`},
		{"it was damaged", in, func() error { return os.WriteFile(file, []byte("rubbish"), 0o600) }, `why="statefile: header damaged"`},
		{"it is a directory", in, func() error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) }, `level=ERROR msg="state file: it cannot be written`},
		{"none is wanted", func(*Options) {}, nil, ""},
	} {
		if c.before != nil {
			if err := c.before(); err != nil {
				t.Fatal(err)
			}
		}
		log := once(t, c.change, nothing)
		if !strings.Contains(log, c.want) || strings.Count(log, `msg="state file`) != strings.Count(c.want, "msg=")+strings.Count(c.want, "why=") {
			t.Errorf("%s: want %q in\n%s", c.name, c.want, log)
		}
	}
}

// TestCodesComeBack: a join code of the run before is known, and answered with
// "later" until its host is back, or it is certain that it will not be.
func TestCodesComeBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "allocations")
	in := func(o *Options) { o.StateFile = file }
	var code string
	once(t, in, func(r running) {
		a, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
		if err == nil {
			code, err = r.caller(secret).JoinCode(t.Context(), a.AllocationID)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	status := func(r running) int {
		var problem *api.Problem
		if _, err := r.caller(secret).Join(t.Context(), code); !errors.As(err, &problem) {
			t.Fatalf("Join: %v", err)
		}
		return problem.Status
	}
	once(t, in, func(r running) {
		if s, p := status(r), r.process(); s != 503 || p.Awaited != 1 || p.Lost != 0 || !p.Storing {
			t.Errorf("within the window: %d, %+v", s, p)
		}
	})
	once(t, func(o *Options) { in(o); o.Config.RecoverFor = 250 * time.Millisecond }, func(r running) {
		testkit.Within(t, time.Minute, "it is certain", func() bool { return r.process().Lost != 0 && status(r) == 404 })
		if s, p := status(r), r.process(); s != 404 || p.Awaited != 0 || p.Lost != 1 {
			t.Errorf("after it: %d, %+v", s, p)
		}
	})
}

// TestFreshIdentity: nothing can come back to a relay that has just been made.
func TestFreshIdentity(t *testing.T) {
	for _, o := range []Options{
		{Config: local(), Mode: Serve, Fresh: true}, {Config: local(), Mode: Dev},
	} {
		o.Identity, o.Logger = options(o.Config, o.Mode).Identity, slog.New(slog.DiscardHandler)
		r := start(t, o)
		if p := r.process(); p.Awaited != 0 || p.Storing {
			t.Errorf("%+v", p)
		}
	}
}

func TestAwaited(t *testing.T) {
	r := restart{left: 5}
	r.lost.Store(2)
	for rebuilt, want := range map[uint64]int{0: 3, 2: 1, 3: 0, 9: 0} {
		if n := r.awaited(rebuilt); n != want {
			t.Errorf("%d rebuilt: %d awaited, want %d", rebuilt, n, want)
		}
	}
}

func TestEngineConfig(t *testing.T) {
	c := local()
	c.UDP[0] = addr("10.0.0.5:7777")
	c.Advertise = append(c.Advertise, host(t, "203.0.113.1"))
	c.HostBytes, c.RecoverFor = 0, 0
	c.Siblings = []config.Sibling{{AddrPort: netip.MustParseAddrPort("203.0.113.9:7777")}}
	serve, err := engineConfig(&c, Serve)
	if err != nil {
		t.Fatal(err)
	}
	var siblings []string
	for _, s := range serve.Siblings {
		siblings = append(siblings, s.String())
	}
	if got := strings.Join(siblings, " "); got != "203.0.113.9:7777 203.0.113.1:7777" {
		t.Errorf("siblings %s: the address that players are told is the relay's own", got)
	}
	if want := (engine.Limits{JoinerDatagrams: 1000, JoinerBytes: 512 << 10, HostDatagrams: 12_000, HostBytes: -1, UnvalidatedBytes: 256 << 10}); serve.Limits != want {
		t.Errorf("limits %+v", serve.Limits)
	}
	if serve.AllowPrivateSources || serve.Unlimited || serve.RecoverFor != -1 || len(serve.Advertise) != 1 || serve.Advertise[0].Host != "203.0.113.1" {
		t.Errorf("serve: %+v", serve)
	}
	dev, err := engineConfig(&c, Dev)
	if err != nil || !dev.AllowPrivateSources || !dev.Unlimited || len(dev.Advertise) != 2 {
		t.Errorf("dev: %+v, %v", dev, err)
	}
}
