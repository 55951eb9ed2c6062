package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ferryrelay/ferry/scripts/lab"
)

// Networks between generator and relays.
const (
	netLoopback = "loopback"
	netVeth     = "veth"
	netVethCut  = "veth-cut"
	netVethNAPI = "veth-napi" // of peers frames: kernel threads receive (threaded NAPI)
)

// ownProcessors applies to both kinds of veth.
const ownProcessors = "each end of the pair receives on its own processor (RPS), as behind a card with one queue. What the kernel receives for a relay while that sleeps is not charged to any process."

// networks are notes for readers of the table.
var networks = map[string]string{
	netLoopback: "Loopback: the receiving half of a datagram's way is charged to the process that sends it. All peers have that in common, a network card has not.",
	netVeth:     "veth: " + ownProcessors + " A merged message crosses whole, as with a card that segments.",
	netVethCut:  "veth-cut: " + ownProcessors + " A merged message is cut before it crosses, in the relay's time, as with a card that does not segment.",
}

// network is the relays' address, the generator's addresses, and the command
// prefix that runs a program in the relays' namespace.
type network struct {
	relay   netip.Addr
	sources netip.Prefix // zero: those of loopback
	enter   []string
}

// Addresses of the veth pair, from the range for benchmarks (RFC 2544).
const (
	vethRelay     = "198.18.0.1"
	vethGenerator = "198.18.0.2"
	vethSources   = "198.19.0.0/16"
)

// backlog is the queue length for datagrams that wait for the receiving
// processor; a closed loop has 3,200 in flight.
const (
	backlog     = 10_000
	backlogFile = "/proc/sys/net/core/netdev_max_backlog"
)

// remote reports whether relays have a namespace of their own.
func (o *options) remote() bool { return o.network != netLoopback }

func (o *options) net() network {
	if !o.remote() {
		return network{relay: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return network{
		relay: netip.MustParseAddr(vethRelay), sources: netip.MustParsePrefix(vethSources),
		enter: []string{"ip", "netns", "exec", o.relaySpace},
	}
}

// listen returns the listening address for a relay that chooses its port.
func (n network) listen() string { return netip.AddrPortFrom(n.relay, 0).String() }

// at returns the relays' address with a port.
func (n network) at(port int) netip.AddrPort { return netip.AddrPortFrom(n.relay, uint16(port)) }

// inVeth runs the measuring process in a namespace with a veth pair to the
// relays' namespace, and then removes both. self is this program with its subcommand.
func inVeth(ctx context.Context, o options, self, args []string) (err error) {
	spaces, cleanup, err := lab.NewNamespaces("relays", "generator")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanup.Finish()) }()
	relays, generator := spaces[0], spaces[1]
	for _, step := range []func() error{
		func() error {
			return relays.IP("link add generator type veth peer name relays netns " + generator.Name)
		},
		func() error { return relays.IP("addr add " + vethRelay + "/30 dev generator") },
		func() error { return generator.IP("addr add " + vethGenerator + "/30 dev relays") },
		func() error {
			if o.network == netVethCut {
				return relays.IP("link set generator gso_max_segs 1")
			}
			return nil
		},
		func() error { return relays.IP("link set generator up") },
		func() error { return generator.IP("link set relays up") },
		func() error { return generator.IP("route add local " + vethSources + " dev lo") },
		func() error { return relays.IP("route add " + vethSources + " via " + vethGenerator) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if err := receive(ctx, o, relays, generator); err != nil {
		return err
	}
	restore, err := raise(backlogFile, backlog)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	argv := slices.Concat([]string{"netns", "exec", generator.Name, self[0], "pin", strconv.Itoa(o.generatorCPU)}, self,
		[]string{"--pinned", "--relay-namespace=" + relays.Name}, args)
	cmd := exec.CommandContext(ctx, "ip", argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // It then reports what it has measured.
	return cmd.Run()
}

// receive selects how and on which processors both ends receive.
func receive(ctx context.Context, o options, relays, generator lab.Namespace) error {
	if o.network != netVethNAPI {
		return errors.Join(receiveOn(ctx, relays, "generator", o.serverCPU), receiveOn(ctx, generator, "relays", o.generatorCPU))
	}
	// A native program receives no frame whose checksum is left to hardware.
	return errors.Join(poll(ctx, relays, "generator", "tx on"), poll(ctx, generator, "relays", "tx off"))
}

// poll makes kernel threads receive from a link. A veth polls only with GRO, for frames that
// the other end cannot merge.
func poll(ctx context.Context, ns lab.Namespace, link, features string) error {
	script := "ethtool -K " + link + " gro on tso off " + features + " && echo 1 >/sys/class/net/" + link + "/threaded"
	out, err := exec.CommandContext(ctx, "ip", "netns", "exec", ns.Name, "sh", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// pinPoller pins the kernel thread that receives from a link, and returns it. Attaching a
// native program starts another thread.
func pinPoller(ctx context.Context, link string, cpu int) (pid int, err error) {
	name := ("napi/" + link + "-")[:min(15, len(link)+6)] // a thread's name has 15 bytes
	out, err := exec.CommandContext(ctx, "pgrep", "--newest", "^"+name).Output()
	if err != nil {
		return 0, fmt.Errorf("kernel thread %s: %w", name, err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
		return 0, err
	}
	out, err = exec.CommandContext(ctx, "taskset", "-p", "-c", strconv.Itoa(cpu), strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("taskset %d: %w: %s", pid, err, out)
	}
	return pid, nil
}

// receiveOn selects the processor that receives from a link (RPS), as for a
// network card whose interrupts go to it. Otherwise the sender's processor
// would.
func receiveOn(ctx context.Context, ns lab.Namespace, link string, cpu int) error {
	file := "/sys/class/net/" + link + "/queues/rx-0/rps_cpus"
	// `ip netns exec` mounts the namespace's own /sys.
	out, err := exec.CommandContext(ctx, "ip", "netns", "exec", ns.Name, "sh", "-c", fmt.Sprintf("echo %x >%s", 1<<cpu, file)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s of %s: %w: %s", file, ns.Name, err, out)
	}
	return nil
}

// raise raises a kernel setting to at least n, and returns a function that
// restores it.
func raise(file string, n int) (restore func() error, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	before, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if before >= n {
		return func() error { return nil }, nil
	}
	return func() error { return os.WriteFile(file, text, 0) }, os.WriteFile(file, []byte(strconv.Itoa(n)), 0)
}
