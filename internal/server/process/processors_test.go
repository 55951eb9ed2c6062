package process

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
)

// fakeScheduler is a machine of 64 processors whose limits a test changes.
type fakeScheduler struct {
	machine.Processors
	leaf     int // what Go computes, from the process's own cgroup
	env      string
	maxprocs int
	computed int // calls of defaults
}

func (f *fakeScheduler) scheduler() scheduler {
	return scheduler{
		defaults: func() int { f.computed++; f.maxprocs = f.leaf; return f.leaf },
		set:      func(n int) { f.maxprocs = n },
		limits:   func() machine.Processors { return f.Processors },
		env:      f.env,
	}
}

func TestProcessors(t *testing.T) {
	for _, c := range []struct {
		name               string
		quota              float64
		leaf               int
		env                string
		setting, addresses int
		workers, maxprocs  int
		reason             string
	}{
		{"a machine", 0, 64, "", 0, 1, 64, 64 + 33, "the machine has 64 processors, and no limit is set"},
		{"a container with 2 of 64", 2, 2, "", 0, 1, 2, 4, "the CPU quota of the cgroup is 2 of 64 processors"},
		{"two addresses", 2, 2, "", 0, 2, 2, 7, "the CPU quota of the cgroup is 2 of 64 processors"},
		{"a quota that Go does not see", 4, 64, "", 0, 1, 4, 7, "the CPU quota of the cgroup is 4 of 64 processors"},
		{"the variable", 2, 2, "8", 0, 1, 8, 13, "the variable GOMAXPROCS is 8"},
		{"an invalid variable", 2, 2, "many", 0, 1, 2, 4, "the CPU quota of the cgroup is 2 of 64 processors"},
		{"the setting", 2, 2, "", 8, 1, 8, 13, "workers is set, and the CPU quota of the cgroup is 2 of 64 processors"},
		{"a small setting", 0, 64, "", 2, 1, 2, 64, "workers is set, and the machine has 64 processors, and no limit is set"},
		{"more processors than sockets", 0, 384, "", 0, 1, 256, 256 + 129, "the machine has 64 processors, and no limit is set"},
	} {
		f := &fakeScheduler{Processors: machine.Processors{Online: 64, Allowed: make([]int, 64), Quota: c.quota}, leaf: c.leaf, env: c.env}
		p := newProcessors(&config.Config{Workers: c.setting, UDP: make([]config.Addr, c.addresses)}, f.scheduler())
		if p.workers != c.workers || f.maxprocs != c.maxprocs || p.reason != c.reason || p.receivers != c.workers*c.addresses {
			t.Errorf("%s: %d workers of %d, GOMAXPROCS %d, %q; want %d, GOMAXPROCS %d, %q",
				c.name, p.workers, p.receivers, f.maxprocs, p.reason, c.workers, c.maxprocs, c.reason)
		}
	}
}

// TestProcessorsFollowTheQuota changes the quota of a process that runs: GOMAXPROCS
// follows, and never takes the processors that the workers hold.
func TestProcessorsFollowTheQuota(t *testing.T) {
	f := &fakeScheduler{Processors: machine.Processors{Online: 64, Allowed: make([]int, 64), Quota: 4}, leaf: 4}
	p := newProcessors(&config.Config{UDP: make([]config.Addr, 1)}, f.scheduler())
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	p.log(log)
	was := f.computed
	p.adapt(log)
	if f.computed != was {
		t.Error("GOMAXPROCS is computed although no limit changed")
	}
	for _, c := range []struct {
		quota    float64
		leaf     int
		maxprocs int
		want     string
	}{
		{16, 16, 16, `gomaxprocs=16 workers=4 because="the CPU quota of the cgroup is 16 of 64 processors" workers_after_a_restart=16`},
		{2, 2, 7, `gomaxprocs=7 workers=4 because="the CPU quota of the cgroup is 2 of 64 processors" workers_after_a_restart=2`},
		{4, 4, 7, `gomaxprocs=7 workers=4 because="the CPU quota of the cgroup is 4 of 64 processors"` + "\n"},
	} {
		out.Reset()
		f.Quota, f.leaf = c.quota, c.leaf
		p.adapt(log)
		if f.maxprocs != c.maxprocs || !strings.Contains(out.String(), c.want) {
			t.Errorf("quota %v: GOMAXPROCS %d, want %d; log %s", c.quota, f.maxprocs, c.maxprocs, out.String())
		}
	}
}

// TestSteeringByCPU: automatic steering needs interrupts on the CPUs of all workers.
func TestSteeringByCPU(t *testing.T) {
	t.Parallel()
	spread := []machine.Interface{{WithoutRPS: 2, Interrupts: []machine.Interrupt{{CPUs: []int{0}}, {CPUs: []int{1}}}}, {RPS: []int{2, 3}}}
	for _, c := range []struct {
		cards []machine.Interface
		byCPU bool
		why   string
	}{
		{spread, true, "network cards' interrupts arrive on all of worker_cpus"},
		{spread[:1], false, "no network card's interrupt is known on CPUs 2-3"},
		{nil, false, "no network card's interrupt is known on CPUs 0-3"},
	} {
		f := &fakeScheduler{Processors: machine.Processors{Online: 4, Allowed: []int{0, 1, 2, 3}}, leaf: 4}
		p := newProcessors(&config.Config{WorkerCPUs: "0-3", UDP: make([]config.Addr, 1)}, f.scheduler())
		if byCPU, why := p.steersByCPU(c.cards); byCPU != c.byCPU || why != c.why {
			t.Errorf("%v, %q; want %v, %q", byCPU, why, c.byCPU, c.why)
		}
	}
}

// TestWorkerCPUs: the list is the number of workers, and names CPUs of the process only.
func TestWorkerCPUs(t *testing.T) {
	f := &fakeScheduler{Processors: machine.Processors{Online: 64, Allowed: []int{4, 5, 6, 7}}, leaf: 4}
	p := newProcessors(&config.Config{WorkerCPUs: "6,4", UDP: make([]config.Addr, 2)}, f.scheduler())
	const why = "worker_cpus is 6,4, and the process may run on 4 of 64 processors"
	if p.workers != 2 || p.receivers != 4 || f.maxprocs != 7 || p.reason != why || p.check() != nil {
		t.Errorf("%+v, GOMAXPROCS %d, %v", p, f.maxprocs, p.check())
	}
	p = newProcessors(&config.Config{WorkerCPUs: "4,8-9", UDP: make([]config.Addr, 1)}, f.scheduler())
	if err := p.check(); err == nil || err.Error() != "worker_cpus: 8-9: the process may run on 4-7 only" {
		t.Error(err)
	}
	for _, c := range []struct {
		c    config.Config
		want string
	}{
		{config.Config{WorkerCPUs: "0-3", Workers: 2}, "workers is 2, and worker_cpus has 4 CPUs"},
		{config.Config{WorkerCPUs: "0-256"}, "worker_cpus: 257 CPUs are more than the 256 workers of an address"},
		{config.Config{WorkerCPUs: "0-3", Workers: 4}, ""},
	} {
		if err := checkWorkerCPUs(&c.c); err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
}
