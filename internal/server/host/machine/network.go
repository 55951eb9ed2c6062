package machine

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

type Interface struct {
	Name     string
	Node     int // NUMA node; -1: unknown or only one
	RxQueues int
	TxQueues int
	// Interrupts of its queues, each with the CPUs that handle it.
	Interrupts []Interrupt
	// RPS are the CPUs to which the kernel passes received datagrams on (receive packet
	// steering), and WithoutRPS is the number of receive queues that do not do that.
	RPS        []int
	WithoutRPS int
	WithoutXPS int
}

type Interrupt struct {
	Number int
	Name   string
	CPUs   []int
}

// ReadInterfaces returns the interfaces of network cards that are up. Virtual ones have no
// queues of their own.
func ReadInterfaces(root fs.FS) (all []Interface) {
	const top = "sys/class/net"
	entries, _ := fs.ReadDir(root, top)
	lines := interruptNames(root)
	for _, e := range entries {
		dir := path.Join(top, e.Name())
		if _, err := fs.Stat(root, path.Join(dir, "device")); err != nil || Text(root, path.Join(dir, "operstate")) == "down" {
			continue
		}
		i := Interface{Name: e.Name(), Node: -1}
		if n, ok := Number(root, path.Join(dir, "device/numa_node")); ok {
			i.Node = int(n)
		}
		i.readQueues(root, dir)
		i.readInterrupts(root, dir, lines)
		all = append(all, i)
	}
	return all
}

func (i *Interface) readQueues(root fs.FS, dir string) {
	queues, _ := fs.ReadDir(root, path.Join(dir, "queues"))
	for _, q := range queues {
		name := path.Join(dir, "queues", q.Name())
		switch {
		case strings.HasPrefix(q.Name(), "rx-"):
			i.RxQueues++
			cpus := parseMask(Text(root, path.Join(name, "rps_cpus")))
			if len(cpus) == 0 {
				i.WithoutRPS++
			}
			i.RPS = union(i.RPS, cpus)
		case strings.HasPrefix(q.Name(), "tx-"):
			i.TxQueues++
			if len(parseMask(Text(root, path.Join(name, "xps_cpus")))) == 0 {
				i.WithoutXPS++
			}
		}
	}
}

func interruptNames(root fs.FS) map[int]string {
	names := map[int]string{}
	for line := range strings.Lines(Text(root, "proc/interrupts")) {
		label, rest, ok := strings.Cut(line, ":")
		n, err := strconv.Atoi(strings.TrimSpace(label))
		if fields := strings.Fields(rest); ok && err == nil && len(fields) > 0 {
			names[n] = fields[len(fields)-1]
		}
	}
	return names
}

// notQueues are parts of the names of interrupts that no queue with received datagrams has.
var notQueues = []string{"config", "control", "async", "cmd", "mgmnt", "event", "output", "misc", "aq@", "fatal"}

// readInterrupts finds those whose names contain that of the interface, of its virtio device
// or its PCI address, and those of the device's directory.
func (i *Interface) readInterrupts(root fs.FS, dir string, names map[int]string) {
	device := ""
	if target, err := fs.ReadLink(root, path.Join(dir, "device")); err == nil {
		device = path.Base(target)
	}
	own := map[int]bool{}
	entries, _ := fs.ReadDir(root, path.Join(dir, "device/msi_irqs"))
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			own[n] = true
		}
	}
	for n, name := range names {
		if !own[n] && !hasWord(name, i.Name) && (device == "" || !strings.Contains(name, device) || strings.HasPrefix(device, "virtio") &&
			!hasWord(name, device)) {
			continue
		}
		lower := strings.ToLower(name)
		isTx := strings.Contains(lower, "tx") && !strings.Contains(lower, "rx")
		if isTx || slices.ContainsFunc(notQueues, func(part string) bool { return strings.Contains(lower, part) }) {
			continue
		}
		list := Text(root, path.Join("proc/irq", strconv.Itoa(n), "effective_affinity_list"))
		if list == "" {
			list = Text(root, path.Join("proc/irq", strconv.Itoa(n), "smp_affinity_list"))
		}
		cpus, _ := ParseCPUs(list)
		i.Interrupts = append(i.Interrupts, Interrupt{n, name, cpus})
	}
	slices.SortFunc(i.Interrupts, func(a, b Interrupt) int { return a.Number - b.Number })
}

// hasWord: words have letters, digits and underscores.
func hasWord(name, word string) bool {
	parts := strings.FieldsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_')
	})
	return slices.Contains(parts, word)
}

// ReceiveCPUs returns the CPUs that handle datagrams which the interface receives, in
// ascending order: those of its interrupts, or those to which RPS passes them.
func (i *Interface) ReceiveCPUs() (cpus []int) {
	if i.WithoutRPS > 0 {
		for _, irq := range i.Interrupts {
			cpus = union(cpus, irq.CPUs)
		}
	}
	return union(cpus, i.RPS)
}

// ReceiveCPUs returns the CPUs that handle datagrams which any of the interfaces receives.
func ReceiveCPUs(all []Interface) (cpus []int) {
	for i := range all {
		cpus = union(cpus, all[i].ReceiveCPUs())
	}
	return cpus
}

func union(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// Without returns the numbers of a that are not in b.
func Without(a, b []int) (rest []int) {
	for _, n := range a {
		if !slices.Contains(b, n) {
			rest = append(rest, n)
		}
	}
	return rest
}
