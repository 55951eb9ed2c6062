// Package testkit has helpers for the tests of every package: waiting for a condition,
// free ports, programs that are not ours, a log for several goroutines, and whether the
// race detector is on. It imports no package of this module.
package testkit

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// WaitLimit is how long [Eventually] waits. It bounds a test that hangs: on an idle
// machine, no wait is that long.
const WaitLimit = 20 * time.Second

// Eventually fails the test unless cond holds within [WaitLimit].
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	Within(t, WaitLimit, what, cond)
}

// Within fails the test unless cond holds within limit.
func Within(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	if !Poll(limit, cond) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// NoProblemWithin waits until problem returns an empty string, and fails the test
// with the last problem otherwise.
func NoProblemWithin(t testing.TB, limit time.Duration, what string, problem func() string) {
	t.Helper()
	last := ""
	if !Poll(limit, func() bool { last = problem(); return last == "" }) {
		t.Fatalf("%s: not within %v: %s", what, limit, last)
	}
}

// Poll calls cond until it holds, for limit at the most, and reports whether it did.
// Most conditions hold at once or soon, so the pauses between calls grow from 100 µs
// to 10 ms.
func Poll(limit time.Duration, cond func() bool) bool {
	const least, most = 100 * time.Microsecond, 10 * time.Millisecond
	end := time.Now().Add(limit)
	for pause := least; time.Now().Before(end); pause = min(2*pause, most) {
		if cond() {
			return true
		}
		time.Sleep(pause)
	}
	return cond()
}

// Program returns the path of a program that is not ours, or ends the test as [Missing]
// does. pkg is the Debian package that has it.
func Program(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, name, pkg)
	}
	return path
}

// Missing ends a test that needs what is not installed: in CI, which installs it, as
// failed, elsewhere as skipped. pkg is the Debian package that has it.
func Missing(t testing.TB, what, pkg string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing (Debian: %s); it is not optional under CI=true", what, pkg)
	}
	t.Skipf("NOT TESTED with %s: it is not installed (Debian: %s)", what, pkg)
}

// NeedRoot skips a test that needs root, and fails it in CI.
func NeedRoot(t testing.TB, what string) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") != "":
		t.Fatalf("%s needs root, which CI has to have", what)
	default:
		t.Skipf("%s needs root", what)
	}
}

// FreeAddr returns an address of loopback that is free in that network, "udp" or
// "tcp". Its port is below the ephemeral ones, so that the system gives it to no
// other socket before the test uses it, or while the test restarts a process.
func FreeAddr(t testing.TB, network string) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000))
		var socket io.Closer
		var err error
		if network == "udp" {
			socket, err = net.ListenPacket(network, addr)
		} else {
			socket, err = net.Listen(network, addr)
		}
		if err == nil {
			socket.Close()
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}

// FreePort returns the port of a free TCP address, as in [FreeAddr].
func FreePort(t testing.TB) string {
	t.Helper()
	_, port, err := net.SplitHostPort(FreeAddr(t, "tcp"))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// LogBuffer collects the output of a process or a logger. Its zero value is empty;
// its methods may be called from several goroutines.
type LogBuffer struct {
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

// Write appends p. It does not fail.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

// String returns the text so far.
func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
