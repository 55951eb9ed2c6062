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
	"syscall"

	"golang.org/x/sys/unix"
)

// netnsDir is where `ip netns` keeps the names of namespaces.
const netnsDir = "/run/netns/"

// Namespace is a network namespace of the laboratory. It is immutable.
type Namespace struct {
	Name string // as `ip netns` knows it
}

// NewNamespaces makes namespaces without any link, named after this process and
// their roles, in the order of these. The janitor removes them, with everything
// that runs in them, when it is told to finish or this process ends. On error
// nothing is left.
func NewNamespaces(roles ...string) ([]Namespace, *CleanupProcess, error) {
	var all []Namespace
	var names []string
	for _, role := range roles {
		ns := Namespace{fmt.Sprintf("ferrylab-%d-%s", os.Getpid(), role)}
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
	// Whatever comes in is delivered, forged or not: that the relay stands it is
	// the point.
	for _, knob := range []string{"all.rp_filter", "default.rp_filter"} {
		if err := n.Set("net.ipv4.conf."+knob, "0"); err != nil {
			return err
		}
	}
	return n.disableDAD()
}

// Do calls f on a thread of its own inside the namespace and returns its error.
// What f opens belongs to the namespace for good; the thread ends with f, so
// that no other goroutine ever runs on it.
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

// onThread starts f on a thread that ends with it. That is never the process's
// first thread: this one would not end but stay where f took it, and its place
// passes for the place of the whole process.
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
		<-done // Meanwhile the other goroutine cannot get the first thread.
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

// Dial is a net.Dialer's DialContext inside the namespace, for http.Transport.
// The address has to be literal.
func (n Namespace) Dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = n.Do(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Set writes a sysctl of the namespace, such as net.ipv4.conf.all.rp_filter.
func (n Namespace) Set(key, value string) error {
	return n.Do(func() error {
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte(value), 0)
	})
}

// IP runs an `ip` command inside the namespace.
func (n Namespace) IP(args string) error { return ip("-n " + n.Name + " " + args) }

// TC runs a `tc` command inside the namespace.
func (n Namespace) TC(args string) error { return run("tc", "-n "+n.Name+" "+args) }

// ip runs the tool of that name with arguments that contain no spaces.
func ip(args string) error { return run("ip", args) }

func run(name, args string) error {
	out, err := exec.Command(name, strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("lab: %s %s: %w: %s", name, args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Missing says in one sentence what this machine lacks for the laboratory;
// empty means nothing.
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

// sweep is what the janitor does once its standard input has ended: it kills
// what runs in the namespaces it was told about, but not its owner, and removes
// them.
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

// Janitor is a process that cleans up when this one ends, in whatever way: the
// kernel then closes the pipe that the janitor waits for.
type CleanupProcess struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	once sync.Once
	err  error
}

func startCleanupProcess(namespaces []string) (*CleanupProcess, error) {
	j := &CleanupProcess{cmd: exec.Command("sh", append([]string{"-c", cleanupScript, "ferrylab"}, namespaces...)...)}
	j.cmd.Env = append(os.Environ(), "CGROUPS="+strings.Join(cgroupDirs(), " "), "OWNER="+strconv.Itoa(os.Getpid()))
	// An interrupt from the terminal is for the tests, not for who cleans up.
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

// Finish lets the janitor do its work and waits for it. It may be called more
// than once.
func (j *CleanupProcess) Finish() error {
	j.once.Do(func() {
		j.pipe.Close()
		if err := j.cmd.Wait(); err != nil {
			j.err = fmt.Errorf("lab: cleaning up: %w", err)
		}
	})
	return j.err
}
