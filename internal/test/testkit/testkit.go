// Package testkit has helpers for the tests of every package: waiting for a condition,
// free ports, programs that are not ours, a clock, a log for several goroutines, and whether the
// race detector is on. It imports no package of this module.
package testkit

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// WaitLimit is how long [Eventually] waits. It bounds a test that hangs: on an idle
// machine, no wait is that long.
const WaitLimit = time.Minute

// DefaultParallel lets n of a package's parallel tests run at once, with the race
// detector half of that, unless the command line says how many. It is for packages
// whose tests mostly wait: by default as many run as there are processors. TestMain
// calls it.
func DefaultParallel(n int) {
	flag.Parse()
	if RaceEnabled {
		n = max(2, n/2) // It makes them bound by the processors.
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", strconv.Itoa(n))
	}
}

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
// Most conditions hold at once or soon: it yields for 200 µs, since a sleep may take a
// millisecond more than asked for, and then sleeps for 100 µs to 10 ms between calls.
func Poll(limit time.Duration, cond func() bool) bool {
	const yield, least, most = 200 * time.Microsecond, 100 * time.Microsecond, 10 * time.Millisecond
	start := time.Now()
	for pause := least; time.Since(start) < limit; {
		if cond() {
			return true
		}
		if time.Since(start) < yield {
			runtime.Gosched()
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, most)
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

// Input reads files that decide a test's result and that only another program opens, such as a
// compiler: go test's cache sees what the test itself opens.
func Input(t testing.TB, files ...string) {
	t.Helper()
	for _, file := range files {
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
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

// OneGoroutine skips a long test that runs on one goroutine, where the race detector has
// nothing to find, if it is on and -short is given.
func OneGoroutine(t testing.TB) {
	t.Helper()
	if RaceEnabled && testing.Short() {
		t.Skip("it runs on one goroutine: not with -race -short")
	}
}

// InNamespace reports whether this process is in a network namespace of its own, for this test.
// If not, it has run the test in one.
func InNamespace(t testing.TB) bool {
	t.Helper()
	const marker = "FERRY_TEST_NAMESPACE"
	if os.Getenv(marker) == t.Name() {
		return true
	}
	NeedRoot(t, "a network namespace")
	Program(t, "ip", "iproute2")
	cmd := exec.Command(Program(t, "unshare", "util-linux"), "--net", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), marker+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// IP runs ip with these arguments, in the namespace of this process.
func IP(t testing.TB, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
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

// ports counts the ports that FreeAddr has tried, from a random one.
var ports = func() *atomic.Uint32 {
	n := new(atomic.Uint32)
	n.Store(rand.Uint32())
	return n
}()

// FreeAddr returns an address of loopback that is free in that network, "udp" or
// "tcp". Its port is below the ephemeral ones, so that the system gives it to no
// other socket before the test uses it, or while the test restarts a process; no other
// test of the process gets it.
func FreeAddr(t testing.TB, network string) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprint("127.0.0.1:", 10_000+ports.Add(1)%20_000)
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
