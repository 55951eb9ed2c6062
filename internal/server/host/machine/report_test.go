package machine

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// largeMachine is one of 64 CPUs on two nodes, with four cards of 16 queues, two at each
// node. The interrupts of queue q of card c are on the CPU that the function returns.
func largeMachine(cpuOf func(card, queue int) int) map[string]string {
	all := map[string]string{
		"sys/devices/system/cpu/online":                    "0-63",
		"sys/devices/system/node/online":                   "0-1",
		"sys/devices/system/node/node0/cpulist":            "0-31",
		"sys/devices/system/node/node1/cpulist":            "32-63",
		"proc/self/status":                                 "Name:\tferry\nCpus_allowed:\tffffffff,ffffffff\nCpus_allowed_list:\t0-63",
		"proc/self/cgroup":                                 "0::/system.slice/ferry.service",
		"sys/fs/cgroup/system.slice/ferry.service/cpu.max": "max 100000",
		"proc/sys/net/core/rmem_max":                       "4194304",
		"proc/sys/net/core/wmem_max":                       "4194304",
		"proc/sys/net/core/netdev_max_backlog":             "1000",
		"proc/sys/net/core/netdev_budget":                  "300",
		"proc/net/softnet_stat":                            "00989680 00000000 00000003 00000000\n00989680 00000000 00000000 00000000",
		"proc/1/comm":                                      "systemd",
		"sys/class/net/lo/operstate":                       "unknown",
		"sys/class/net/eth9/operstate":                     "down",
		"sys/class/net/eth9/device/numa_node":              "0",
	}
	interrupts := "           CPU0       CPU1\n  1:  9  0  IO-APIC   1-edge      i8042\n"
	for card := range 4 {
		name := fmt.Sprintf("eth%d", card)
		dir := "sys/class/net/" + name
		all[dir+"/operstate"] = "up"
		all[dir+"/device/numa_node"] = fmt.Sprint(card / 2)
		for q := range 16 {
			irq := 100 + 20*card + q
			cpu := cpuOf(card, q)
			mask := fmt.Sprintf("%08x,%08x", uint64(1)<<cpu>>32, uint32(uint64(1)<<cpu))
			all[fmt.Sprintf("%s/queues/rx-%d/rps_cpus", dir, q)] = "00000000,00000000"
			all[fmt.Sprintf("%s/queues/tx-%d/xps_cpus", dir, q)] = mask
			all[fmt.Sprintf("proc/irq/%d/smp_affinity_list", irq)] = "0-63"
			all[fmt.Sprintf("proc/irq/%d/effective_affinity_list", irq)] = fmt.Sprint(cpu)
			interrupts += fmt.Sprintf("%4d:  1  0  PCI-MSIX-0000:3b:00.%d  %d-edge      ice-%s-TxRx-%d\n", irq, card, q, name, q)
		}
		interrupts += fmt.Sprintf("%4d:  1  0  PCI-MSIX-0000:3b:00.%d  16-edge      ice-%s-misc\n", 118+20*card, card, name)
		all[fmt.Sprintf("proc/irq/%d/effective_affinity_list", 118+20*card)] = "63"
	}
	all["proc/interrupts"] = interrupts
	return all
}

func oneToOne(card, queue int) int { return 16*card + queue }

func changed(all, other map[string]string) map[string]string {
	all = maps.Clone(all)
	maps.Copy(all, other)
	return all
}

func report(root fs.FS, p Plan) string {
	var lines []string
	for _, l := range Report(root, p) {
		lines = append(lines, format(l))
	}
	return strings.Join(lines, "\n")
}

func format(l Line) string {
	kind, change := "ok", ""
	if l.Change != "" {
		kind, change = "advice", "; "+l.Change
	}
	return fmt.Sprintf("%s: %s: %s%s, because %s", kind, l.Subject, l.Finding, change, l.Because)
}

var plan = Plan{Addresses: 1, Buffer: 4 << 20}

func TestReportLargeMachine(t *testing.T) {
	tuned := largeMachine(oneToOne)
	pinned := plan
	for cpu := range 64 {
		pinned.CPUs = append(pinned.CPUs, cpu)
	}
	node0 := plan
	node0.CPUs = pinned.CPUs[:32]
	for _, c := range []struct {
		name  string
		files map[string]string
		plan  Plan
		want  []string
		not   []string
	}{
		{"default settings", tuned, plan, []string{
			"ok: processors: 64 workers for each UDP address, because the machine has 64 processors, and no limit is set",
			"ok: eth0: 16 receive queues, 64 with the other cards, because each queue is handled by one CPU at a time, and there are 64 workers",
			"ok: eth3: datagrams are handled on CPUs 48-63, because that is one CPU for each queue or worker",
			"ok: eth0: 16 transmit queues, each with CPUs of its own, because a worker then sends without the lock of another worker's queue",
			"advice: NUMA: the workers are on 2 of 2 nodes; run one relay for each node (numactl --cpunodebind=N --membind=N), or one with numactl --interleave=all, because the allocations are otherwise in the memory of the node on which one thread created them",
			"ok: net.core.rmem_max: 4096 KiB, because the relay asks for 4096 KiB for each socket",
			"ok: net.core.netdev_max_backlog: 1000, 0 datagrams dropped since the start of the machine, because only RPS and virtual interfaces use this queue",
			"ok: net.core.netdev_budget: 300, used up 3 times since the start of the machine, because the kernel handled 20000000 datagrams",
		}, []string{"irqbalance", "eth9", "ok: lo", "advice: lo"}},
		{"few queues", changed(tuned, map[string]string{"sys/class/net/eth2/operstate": "down"}), plan, []string{
			"advice: eth0: 16 receive queues; ethtool -L eth0 combined 64, or as many as the card has, because each queue is handled by one CPU at a time, and there are 64 workers",
		}, []string{"eth2"}},
		{"pinned", tuned, pinned, []string{"ok: irqbalance: does not run, because interrupts stay where they were put"}, []string{"worker_cpus"}},
		{"one node", tuned, node0, []string{
			"ok: NUMA: the workers are on 1 of 2 nodes, because allocations, buffers and workers are on one node",
			"advice: eth2: is at node 1, and no worker is; choose worker_cpus of that node, because each datagram crosses the link between the nodes otherwise",
			"advice: eth2: datagrams are handled on CPUs 32-47; move the interrupts on CPUs 32-47 to worker_cpus, because workers run on CPUs 0-31, and a datagram of another CPU crosses caches",
		}, nil},
		{"all interrupts on one CPU", largeMachine(func(int, int) int { return 0 }), plan, []string{
			"advice: eth1: datagrams are handled on CPUs 0; spread the interrupts of its queues over 16 CPUs (/proc/irq/*/smp_affinity_list, set_irq_affinity of the driver), because 16 queues on 1 CPUs leave the others idle",
		}, nil},
		{"untuned", changed(tuned, map[string]string{
			"proc/sys/net/core/rmem_max": "212992", "proc/net/softnet_stat": "000003e8 00000005 00000002",
			"proc/812/comm": "irqbalance", "sys/class/net/eth0/queues/tx-3/xps_cpus": "00000000,00000000",
		}), pinned, []string{
			"advice: net.core.rmem_max: 208 KiB; sysctl -w net.core.rmem_max=4194304, or give the process CAP_NET_ADMIN, because the relay asks for 4096 KiB for each socket",
			"advice: net.core.netdev_max_backlog: 1000, 5 datagrams dropped since the start of the machine; sysctl -w net.core.netdev_max_backlog=10000, because datagrams that a CPU passes to another wait in this queue",
			"advice: net.core.netdev_budget: 300, used up 2 times since the start of the machine; sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000, because that is more than once in 1000 datagrams, and the rest of the card's queue waits then",
			"advice: irqbalance: runs; stop it, or exclude the interrupts of the cards, because it moves interrupts away from the workers, which are pinned",
			"advice: eth0: 1 of 16 transmit queues without CPUs; set xps_cpus of each to the CPU of its interrupt, because workers share transmit queues, and wait for their locks, otherwise",
		}, nil},
	} {
		got := report(files(c.files), c.plan)
		for _, want := range c.want {
			if !strings.Contains("\n"+got+"\n", "\n"+want+"\n") {
				t.Errorf("%s: no line %q in\n%s", c.name, want, got)
			}
		}
		for _, not := range c.not {
			if strings.Contains(got, not) {
				t.Errorf("%s: %q in\n%s", c.name, not, got)
			}
		}
	}
}

// TestReportContainer: a container sees its quota, and neither cards nor interrupts.
func TestReportContainer(t *testing.T) {
	got := report(files(map[string]string{
		"sys/devices/system/cpu/online": "0-63", "proc/self/status": "Cpus_allowed_list:\t0-63",
		"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000",
		"sys/class/net/eth0/operstate": "up", "sys/class/net/eth0/queues/rx-0/rps_cpus": "0",
	}), plan)
	const want = `advice: processors: 2 workers for each UDP address; give the container whole processors instead (cpuset, --cpuset-cpus, the static CPU manager), because the CPU quota of the cgroup is 2 of 64 processors, and the kernel stops all threads until the next period of 100 ms when a quota is used up
advice: network cards: none is visible; run this on the host of the container, because queues and interrupts belong to the host`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestVirtio: a virtual machine's card has one queue, whose interrupt bears the name of the
// device, and RPS passes datagrams on.
func TestVirtio(t *testing.T) {
	root := files(map[string]string{
		"sys/devices/system/cpu/online": "0-3", "proc/self/status": "Cpus_allowed_list:\t0-3",
		"sys/class/net/eth0/operstate": "up", "sys/class/net/eth0/queues/rx-0/rps_cpus": "0",
		"sys/class/net/eth0/queues/tx-0/xps_cpus": "0",
		"sys/devices/virtio2/numa_node":           "-1",
		"proc/interrupts": "     CPU0 CPU1\n 37: 0 0 PCI-MSIX 0-edge virtio2-config\n 38: 0 9 PCI-MSIX 1-edge virtio2-input.0\n" +
			" 39: 0 9 PCI-MSIX 2-edge virtio2-output.0\n 40: 7 0 PCI-MSIX 1-edge virtio20-input.0\n",
		"proc/irq/37/smp_affinity_list": "2", "proc/irq/38/smp_affinity_list": "1",
		"proc/irq/39/smp_affinity_list": "3", "proc/irq/40/smp_affinity_list": "0",
	})
	root["sys/class/net/eth0/device"] = &fstest.MapFile{Data: []byte("../../../devices/virtio2"), Mode: fs.ModeSymlink}
	cards := ReadInterfaces(root)
	if len(cards) != 1 || FormatCPUs(cards[0].ReceiveCPUs()) != "1" {
		t.Fatalf("%+v", cards)
	}
	const want = "advice: eth0: one receive queue; ethtool -L eth0 combined 4, or as many as the card has; if it has one only, set rps_cpus of its queue, because"
	if got := report(root, plan); !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
	root["sys/class/net/eth0/queues/rx-0/rps_cpus"].Data = []byte("f\n")
	if got, want := report(root, plan), "ok: eth0: one receive queue, passed on to 4 CPUs, because"; !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
}

// TestReportHere reports on the machine of the test: whatever it has, a line is whole.
func TestReportHere(t *testing.T) {
	for _, l := range Report(os.DirFS("/"), plan) {
		t.Log(format(l))
		if l.Subject == "" || l.Finding == "" || l.Because == "" {
			t.Errorf("%+v", l)
		}
	}
}
