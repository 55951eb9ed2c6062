package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"

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
func NewNamespaces(roles ...string) ([]Namespace, *Janitor, error) {
	var all []Namespace
	var names []string
	for _, role := range roles {
		ns := Namespace{fmt.Sprintf("ferrylab-%d-%s", os.Getpid(), role)}
		all, names = append(all, ns), append(names, ns.Name)
	}
	j, err := startJanitor(names)
	if err != nil {
		return nil, nil, err
	}
	for _, ns := range all {
		if err := ns.make(); err != nil {
			return nil, nil, errors.Join(err, j.Finish())
		}
	}
	return all, j, nil
}

func (n Namespace) make() error {
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
	return n.quickIPv6()
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
