package machine

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

type Plan struct {
	Workers   int   // per UDP address; 0: one per processor
	Addresses int   // UDP addresses
	CPUs      []int // to which the workers are pinned; empty: they are not
	Buffer    int   // bytes that the relay asks for each buffer of a socket
}

// Line is one result of a report: Subject is what was looked at, Finding its state, Change
// what to do, empty if nothing, and Because the reason.
type Line struct{ Subject, Finding, Change, Because string }

// Report says how the machine suits the plan, and what to change.
func Report(root fs.FS, p Plan) []Line {
	limits := ReadProcessors(root)
	if p.Workers == 0 {
		p.Workers = limits.Limit(max(1, len(limits.Allowed)))
	}
	if len(p.CPUs) > 0 {
		p.Workers = len(p.CPUs)
	}
	cards := ReadInterfaces(root)
	lines := reportProcessors(limits, &p)
	lines = append(lines, reportCards(cards, &p)...)
	if len(p.CPUs) > 0 {
		lines = append(lines, reportBalancer(root))
	}
	lines = append(lines, reportNodes(root, cards, &p)...)
	lines = append(lines, reportBuffers(root, &p)...)
	lines = append(lines, reportSoftirq(root, cards)...)
	return append(lines, ReadUDP(root).Losses()...)
}

func reportProcessors(limits Processors, p *Plan) []Line {
	l := Line{Subject: "processors", Finding: fmt.Sprintf("%d workers for each UDP address", p.Workers), Because: limits.String()}
	switch {
	case limits.Quota > 0:
		l.Change = "give the container whole processors instead (cpuset, --cpuset-cpus, the static CPU manager)"
		l.Because += ", and the kernel stops all threads until the next period of 100 ms when a quota is used up"
	case limits.Online > 0 && p.Workers > len(limits.Allowed):
		l.Change = fmt.Sprintf("set workers to %d or less", len(limits.Allowed))
	}
	lines := []Line{l}
	if bad := Without(p.CPUs, limits.Allowed); len(bad) > 0 && len(limits.Allowed) > 0 {
		lines = append(lines, Line{"worker_cpus", "names " + FormatCPUs(bad), "remove them",
			"the process may run on " + FormatCPUs(limits.Allowed) + " only"})
	}
	return lines
}

func reportCards(cards []Interface, p *Plan) (lines []Line) {
	if len(cards) == 0 {
		return []Line{{"network cards", "none is visible", "run this on the host of the container",
			"queues and interrupts belong to the host"}}
	}
	queues := 0 // of all cards
	for i := range cards {
		queues += cards[i].RxQueues
	}
	for i := range cards {
		card := &cards[i]
		cpus := card.ReceiveCPUs()
		lines = append(lines, reportQueues(card, queues, cpus, p), reportInterrupts(card, cpus, p))
		if card.TxQueues > 1 {
			lines = append(lines, reportTransmit(card))
		}
	}
	return lines
}

func reportQueues(card *Interface, queues int, cpus []int, p *Plan) Line {
	l := Line{Subject: card.Name, Finding: fmt.Sprintf("%d receive queues", card.RxQueues),
		Because: fmt.Sprintf("each queue is handled by one CPU at a time, and there are %d workers", p.Workers)}
	if card.RxQueues == 1 {
		l.Finding = "one receive queue"
	}
	switch {
	case card.RxQueues >= p.Workers:
	case queues >= p.Workers:
		l.Finding += fmt.Sprintf(", %d with the other cards", queues)
	case len(cpus) >= p.Workers:
		l.Finding += ", passed on to " + strconv.Itoa(len(cpus)) + " CPUs"
	default:
		l.Change = fmt.Sprintf("ethtool -L %s combined %d, or as many as the card has", card.Name, p.Workers)
		if card.RxQueues == 1 && card.WithoutRPS > 0 {
			l.Change += "; if it has one only, set rps_cpus of its queue"
		}
	}
	return l
}

func reportInterrupts(card *Interface, cpus []int, p *Plan) Line {
	l := Line{Subject: card.Name, Finding: "datagrams are handled on CPUs " + FormatCPUs(cpus)}
	want := min(card.RxQueues, p.Workers)
	switch outside := Without(cpus, p.CPUs); {
	case len(cpus) == 0:
		l.Finding, l.Change = "its interrupts are not found", "look at /proc/interrupts"
		l.Because = "their names do not contain that of the interface"
	case len(cpus) < want:
		l.Change = fmt.Sprintf("spread the interrupts of its queues over %d CPUs (/proc/irq/*/smp_affinity_list, set_irq_affinity of the driver)", want)
		l.Because = fmt.Sprintf("%d queues on %d CPUs leave the others idle", card.RxQueues, len(cpus))
	case len(p.CPUs) > 0 && len(outside) > 0:
		l.Change = "move the interrupts on CPUs " + FormatCPUs(outside) + " to worker_cpus"
		l.Because = "workers run on CPUs " + FormatCPUs(p.CPUs) + ", and a datagram of another CPU crosses caches"
	default:
		l.Because = "that is one CPU for each queue or worker"
	}
	return l
}

func reportTransmit(card *Interface) Line {
	l := Line{Subject: card.Name, Finding: fmt.Sprintf("%d transmit queues, each with CPUs of its own", card.TxQueues),
		Because: "a worker then sends without the lock of another worker's queue"}
	if card.WithoutXPS > 0 {
		l.Finding = fmt.Sprintf("%d of %d transmit queues without CPUs", card.WithoutXPS, card.TxQueues)
		l.Change = "set xps_cpus of each to the CPU of its interrupt"
		l.Because = "workers share transmit queues, and wait for their locks, otherwise"
	}
	return l
}

func reportBalancer(root fs.FS) Line {
	l := Line{Subject: "irqbalance", Finding: "does not run", Because: "interrupts stay where they were put"}
	all, _ := fs.Glob(root, "proc/[0-9]*/comm")
	if slices.ContainsFunc(all, func(name string) bool { return Text(root, name) == "irqbalance" }) {
		l.Finding, l.Change = "runs", "stop it, or exclude the interrupts of the cards"
		l.Because = "it moves interrupts away from the workers, which are pinned"
	}
	return l
}

func reportNodes(root fs.FS, cards []Interface, p *Plan) (lines []Line) {
	nodes, err := ParseCPUs(Text(root, "sys/devices/system/node/online"))
	if err != nil || len(nodes) < 2 {
		return nil
	}
	used := map[int]bool{}
	for _, node := range nodes {
		cpus, _ := ParseCPUs(Text(root, fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node)))
		if len(p.CPUs) == 0 || len(Without(cpus, p.CPUs)) < len(cpus) {
			used[node] = true
		}
	}
	l := Line{Subject: "NUMA", Finding: fmt.Sprintf("the workers are on %d of %d nodes", len(used), len(nodes)),
		Because: "allocations, buffers and workers are on one node"}
	if len(used) > 1 {
		l.Change = "run one relay for each node (numactl --cpunodebind=N --membind=N), or one with numactl --interleave=all"
		l.Because = "the allocations are otherwise in the memory of the node on which one thread created them"
	}
	lines = append(lines, l)
	for i := range cards {
		if node := cards[i].Node; node >= 0 && !used[node] {
			lines = append(lines, Line{cards[i].Name, fmt.Sprintf("is at node %d, and no worker is", node),
				"choose worker_cpus of that node", "each datagram crosses the link between the nodes otherwise"})
		}
	}
	return lines
}

func reportBuffers(root fs.FS, p *Plan) (lines []Line) {
	for _, knob := range []string{"rmem_max", "wmem_max"} {
		granted, ok := Number(root, "proc/sys/net/core/"+knob)
		if !ok {
			continue
		}
		l := Line{Subject: "net.core." + knob, Finding: kib(granted), Because: fmt.Sprintf("the relay asks for %s for each socket",
			kib(int64(p.Buffer)))}
		if granted < int64(p.Buffer) {
			l.Change = fmt.Sprintf("sysctl -w net.core.%s=%d, or give the process CAP_NET_ADMIN", knob, p.Buffer)
		}
		lines = append(lines, l)
	}
	return lines
}

func kib(n int64) string { return strconv.FormatInt(n>>10, 10) + " KiB" }

// squeezeRatio is the part of the datagrams at which running out of the budget counts.
const squeezeRatio = 1000

// minBacklog is the queue to another CPU that holds 10 ms of a million datagrams a second.
const minBacklog = 10_000

// reportSoftirq reads counters since the start of the machine.
func reportSoftirq(root fs.FS, cards []Interface) (lines []Line) {
	var handled, dropped, squeezed uint64
	for line := range strings.Lines(Text(root, "proc/net/softnet_stat")) {
		for i, sum := range []*uint64{&handled, &dropped, &squeezed} {
			if fields := strings.Fields(line); i < len(fields) {
				n, _ := strconv.ParseUint(fields[i], 16, 64)
				*sum += n
			}
		}
	}
	if backlog, ok := Number(root, "proc/sys/net/core/netdev_max_backlog"); ok {
		rps := slices.ContainsFunc(cards, func(c Interface) bool { return len(c.RPS) > 0 })
		l := Line{Subject: "net.core.netdev_max_backlog", Finding: fmt.Sprintf("%d, %d datagrams dropped since the start of the machine",
			backlog, dropped),
			Because: "only RPS and virtual interfaces use this queue"}
		if backlog < minBacklog && (rps || dropped > 0) {
			l.Change = fmt.Sprintf("sysctl -w net.core.netdev_max_backlog=%d", minBacklog)
			l.Because = "datagrams that a CPU passes to another wait in this queue"
		}
		lines = append(lines, l)
	}
	if budget, ok := Number(root, "proc/sys/net/core/netdev_budget"); ok {
		l := Line{Subject: "net.core.netdev_budget", Finding: fmt.Sprintf("%d, used up %d times since the start of the machine",
			budget, squeezed),
			Because: fmt.Sprintf("the kernel handled %d datagrams", handled)}
		if squeezed > handled/squeezeRatio {
			l.Change = fmt.Sprintf("sysctl -w net.core.netdev_budget=%d net.core.netdev_budget_usecs=8000", max(600, 2*budget))
			l.Because = fmt.Sprintf("that is more than once in %d datagrams, and the rest of the card's queue waits then", squeezeRatio)
		}
		lines = append(lines, l)
	}
	return lines
}
