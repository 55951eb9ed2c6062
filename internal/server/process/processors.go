package process

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/engine/fastpath"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
)

// receiversPerSpare is the number of workers' processors for each spare one.
//
// A worker keeps its processor of Go's scheduler while datagrams come, so everything else
// shares the spare ones: control, which takes up to one, the collector, whose quarter of
// all processors then fits beside the workers, API, TLS and WebSocket. 64 workers have 33.
// A spare one costs no core: it lets one more thread run Go code, and the kernel shares
// the cores among the threads. docs/research/experiments.md has latencies beside saturated UDP.
const receiversPerSpare = 2

func spareProcessors(receivers int) int { return 1 + receivers/receiversPerSpare }

// maxWorkers is the largest number of workers per UDP address, as in the settings.
const maxWorkers = 256

type scheduler struct {
	// defaults sets GOMAXPROCS to what Go computes, and returns it.
	defaults func() int
	// set sets GOMAXPROCS, which ends automatic updates.
	set    func(n int)
	limits func() machine.Processors
	// env is the variable GOMAXPROCS, which determines the number if it is valid.
	env string
}

func goScheduler() scheduler {
	return scheduler{
		defaults: func() int {
			runtime.SetDefaultGOMAXPROCS()
			return runtime.GOMAXPROCS(0)
		},
		set:    func(n int) { runtime.GOMAXPROCS(n) },
		limits: func() machine.Processors { return machine.ReadProcessors(os.DirFS("/")) },
		env:    os.Getenv("GOMAXPROCS"),
	}
}

// processors are those that the process uses. New determines the number of workers, which
// is then fixed; GOMAXPROCS follows the limits. After New they belong to follow.
type processors struct {
	sched     scheduler
	limits    machine.Processors
	usable    int    // that Go computes
	workers   int    // per UDP address
	receivers int    // workers of all addresses
	maxprocs  int    // GOMAXPROCS
	automatic bool   // no setting determines the number of workers
	reason    string // of the number of workers
	cpus      []int  // of the workers, if they are pinned
}

func (p *processors) check() error {
	if bad := machine.Without(p.cpus, p.limits.Allowed); len(bad) > 0 && len(p.limits.Allowed) > 0 {
		return fmt.Errorf("worker_cpus: %s: the process may run on %s only",
			machine.FormatCPUs(bad), machine.FormatCPUs(p.limits.Allowed))
	}
	return nil
}

// steersByCPU reports whether the worker on a CPU shall receive the datagrams that
// the kernel handles there, by the interfaces of the machine, and why.
func (p *processors) steersByCPU(cards []machine.Interface) (byCPU bool, why string) {
	if idle := machine.Without(p.cpus, machine.ReceiveCPUs(cards)); len(idle) > 0 {
		return false, "no network card's interrupt is known on CPUs " + machine.FormatCPUs(idle)
	}
	return true, "network cards' interrupts arrive on all of worker_cpus"
}

func newProcessors(c *config.Config, s scheduler) *processors {
	p := &processors{sched: s, cpus: c.WorkerCPUs.List()}
	p.count()
	switch {
	case len(p.cpus) > 0:
		p.workers, p.reason = len(p.cpus), fmt.Sprintf("worker_cpus is %s, and %s", c.WorkerCPUs, p.why())
	case c.Workers > 0:
		p.workers, p.reason = c.Workers, fmt.Sprintf("workers is set, and %s", p.why())
	default:
		p.automatic = true
		p.workers, p.reason = min(p.usable, maxWorkers), p.why()
	}
	p.receivers = p.workers * len(c.UDP)
	p.apply()
	return p
}

func (p *processors) count() {
	p.limits = p.sched.limits()
	if n, err := strconv.Atoi(p.sched.env); err == nil && n > 0 {
		p.usable = n
		return
	}
	p.usable = p.limits.Limit(p.sched.defaults())
}

// apply sets GOMAXPROCS to the usable processors, and to more if the workers need it.
func (p *processors) apply() {
	p.maxprocs = max(p.usable, p.receivers+spareProcessors(p.receivers))
	p.sched.set(p.maxprocs)
}

func (p *processors) why() string {
	if n, err := strconv.Atoi(p.sched.env); err == nil && n > 0 {
		return fmt.Sprintf("the variable GOMAXPROCS is %d", n)
	}
	return p.limits.String()
}

func (p *processors) log(log *slog.Logger) {
	log.Info("processors", "workers", p.workers, "workers_of_all_addresses", p.receivers, "gomaxprocs", p.maxprocs, "because", p.reason)
}

// machineReport says how this machine suits a relay with these settings.
func machineReport(c *config.Config) []machine.Line {
	p := machine.Plan{
		Workers: c.Workers, Addresses: len(c.UDP), CPUs: c.WorkerCPUs.List(),
		Buffer: sock.DefaultBuffer,
	}
	lines := append(machine.Report(os.DirFS("/"), p), machine.ReadQueues().Losses()...)
	if c.XDP != "off" {
		for _, f := range fastpath.New(fastPathConfig(c)).Private().Check(listen(c)) {
			lines = append(lines, machine.Line(f))
		}
	}
	return lines
}

const limitsEvery = 5 * time.Second

func (p *processors) follow(ctx context.Context, log *slog.Logger) {
	periodic.Run(ctx, limitsEvery, func() { p.adapt(log) })
}

// adapt sets GOMAXPROCS again if the limits have changed. The number of workers is that
// of the sockets, and needs a restart.
func (p *processors) adapt(log *slog.Logger) {
	if p.limits.Equal(p.sched.limits()) {
		return
	}
	p.count()
	p.apply()
	fields := []any{"gomaxprocs", p.maxprocs, "workers", p.workers, "because", p.why()}
	if best := min(p.usable, maxWorkers); p.automatic && best != p.workers {
		fields = append(fields, "workers_after_a_restart", best)
	}
	log.Info("the limits of processor time changed", fields...)
}
