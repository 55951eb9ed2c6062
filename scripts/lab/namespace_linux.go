package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// netnsDir is where `ip netns` stores the names of namespaces.
const netnsDir = "/run/netns/"

// Namespace is a network namespace. It is immutable.
type Namespace struct {
	Name string // the name in `ip netns`
}

// networks is how many times NewNamespaces was called: tests run in parallel.
var networks atomic.Int64

// NewNamespaces creates namespaces without links, named after this process, the
// call and the roles, in the order of roles. The cleanup process removes them, with
// every process in them, on Finish or when this process ends. On error nothing
// is left.
func NewNamespaces(roles ...string) ([]Namespace, *CleanupProcess, error) {
	var all []Namespace
	var names []string
	call := networks.Add(1)
	for _, role := range roles {
		ns := Namespace{fmt.Sprintf("ferrylab-%d-%d-%s", os.Getpid(), call, role)}
		all, names = append(all, ns), append(names, ns.Name)
	}
	j, err := startCleanupProcess(names)
	if err != nil {
		return nil, nil, err
	}
	for _, ns := range all {
		if err := ns.create(); err != nil {
			return nil, nil, errors.Join(err, j.Finish())
		}
	}
	return all, j, nil
}

func (n Namespace) create() error {
	if err := errors.Join(ip("netns add "+n.Name), n.IP("link set lo up")); err != nil {
		return err
	}
	// Accept forged sources: the tests send them.
	for _, knob := range []string{"all.rp_filter", "default.rp_filter"} {
		if err := n.Set("net.ipv4.conf."+knob, "0"); err != nil {
			return err
		}
	}
	return n.disableDAD()
}

// Do calls f on a thread inside the namespace and returns its error. Sockets
// that f opens stay in the namespace. The thread ends with f.
func (n Namespace) Do(f func() error) error {
	done := make(chan error, 1)
	onThread(func() {
		err := n.enter()
		if err == nil {
			err = f()
		}
		done <- err
	})
	return <-done
}

// onThread starts f on an operating system thread that ends with it. It avoids
// the process's first thread, which would not end: its namespace counts as that
// of the whole process.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread() // Never unlocked: the thread ends with this goroutine.
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		done := make(chan struct{})
		onThread(func() { defer close(done); f() })
		<-done // Until then this goroutine occupies the first thread.
	}()
}

func (n Namespace) enter() error {
	ns, err := os.Open(netnsDir + n.Name)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("lab: setns %s: %w", n.Name, err)
	}
	return nil
}

// Dial is a DialContext for http.Transport that dials inside the namespace.
// addr must contain a literal IP address.
func (n Namespace) Dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = n.Do(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Set writes a sysctl of the namespace, for example
// net.ipv4.conf.all.rp_filter.
func (n Namespace) Set(key, value string) error {
	return n.Do(func() error {
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte(value), 0)
	})
}

// Filter loads rules of nftables inside the namespace, in the syntax of nft -f.
func (n Namespace) Filter(rules string) error {
	cmd := exec.Command("ip", "netns", "exec", n.Name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("lab: nft: %w: %s", err, out)
	}
	return nil
}

// IP runs an `ip` command inside the namespace.
func (n Namespace) IP(args string) error { return ip("-n " + n.Name + " " + args) }

// TC runs a `tc` command inside the namespace.
func (n Namespace) TC(args string) error { return run("tc", "-n "+n.Name+" "+args) }

// ip runs the ip command. No argument may contain a space.
func ip(args string) error { return run("ip", args) }

func run(name, args string) error {
	out, err := exec.Command(name, strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("lab: %s %s: %w: %s", name, args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Missing returns what the tests need and this machine lacks, in one sentence;
// empty if nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "the laboratory makes network namespaces and needs root"
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "the laboratory needs iproute2 (apt-get install iproute2): " + err.Error()
		}
	}
	return ""
}

// cleanupScript waits for the end of its standard input, kills all processes in
// the given namespaces except $OWNER, and removes the namespaces and $CGROUPS.
const cleanupScript = `cat >/dev/null
for ns in "$@"; do
	[ -e "/run/netns/$ns" ] || continue
	for try in 1 2 3 4 5 6 7 8 9 10; do
		pids=$(ip netns pids "$ns") || break
		[ -n "$pids" ] || break
		for pid in $pids; do
			[ "$pid" = "$OWNER" ] || kill -9 "$pid" 2>/dev/null
		done
		sleep 0.1
	done
	ip netns del "$ns"
done
for dir in $CGROUPS; do
	[ -d "$dir" ] && rmdir "$dir"
done
exit 0
`

// CleanupProcess is a child process that removes namespaces and control groups
// when this process ends, even if it is killed: the kernel then closes the pipe
// that the child reads.
type CleanupProcess struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	once sync.Once
	err  error
}

func startCleanupProcess(namespaces []string) (*CleanupProcess, error) {
	j := &CleanupProcess{cmd: exec.Command("sh", append([]string{"-c", cleanupScript, "ferrylab"}, namespaces...)...)}
	j.cmd.Env = append(os.Environ(), "CGROUPS="+strings.Join(cgroupDirs(), " "), "OWNER="+strconv.Itoa(os.Getpid()))
	// A group of its own, so that an interrupt from the terminal does not end it.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if j.pipe, err = j.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	return j, nil
}

// Finish runs the cleanup and waits for it. It may be called more than once.
func (j *CleanupProcess) Finish() error {
	j.once.Do(func() {
		j.pipe.Close()
		if err := j.cmd.Wait(); err != nil {
			j.err = fmt.Errorf("lab: cleaning up: %w", err)
		}
	})
	return j.err
}
