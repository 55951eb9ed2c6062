// Package ferrytest builds the program ferry and runs it for tests, as the system sees it.
package ferrytest

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// binaryVariable names ferry for a test that runs in a namespace. Ferry refuses a variable FERRY_… that it does not know.
const binaryVariable = "TEST_FERRY_BINARY"

var buildDir string

// Build builds ferry, once, and returns its path.
var Build = sync.OnceValues(func() (path string, err error) {
	if path = os.Getenv(binaryVariable); path != "" {
		return path, nil
	}
	if buildDir, err = os.MkdirTemp("", "ferry-test-"); err != nil {
		return "", err
	}
	path = filepath.Join(buildDir, "ferry")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if err = link(path); err != nil {
		return "", err
	}
	return path, os.Setenv(binaryVariable, path)
})

// link writes ferry to a file. What go run has linked stays in the build cache, for all packages and the next run;
// go build links each time, with debug information.
func link(to string) error {
	for range 2 {
		out, err := exec.Command("go", "run", "-exec", "go version", "github.com/ferryrelay/ferry/cmd/ferry").CombinedOutput()
		path, _, ok := strings.Cut(string(out), ": go1")
		if err != nil || !ok {
			return fmt.Errorf("go run: %w\n%s", err, out)
		}
		program, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) { // It has just been linked, in a directory that is gone: the next run names the one in the cache.
			continue
		}
		if err == nil {
			err = os.WriteFile(to, program, 0o755)
		}
		if err == nil {
			err = os.Chmod(to, 0o755) // The umask may let a group write it, which an upgrade refuses.
		}
		return err
	}
	return errors.New("go run does not keep ferry in the build cache")
}

// Binary is [Build], and fails a test if there is an error.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := Build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Main runs a package's tests, and removes what was built for them. TestMain calls it.
func Main(m *testing.M) {
	code := m.Run()
	if buildDir != "" {
		_ = os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

// Process is a running ferry.
type Process struct {
	*exec.Cmd
	Log       testkit.LogBuffer // standard error
	UDP       netip.AddrPort    // the first, from the ready line, as the following
	API       string            // URL; empty: none
	Admin     string            // URL
	t         testing.TB
	ended     chan struct{}
	exitError error // from then on
}

// Start starts a command that runs ferry, and waits until it is ready. A command without an environment
// gets that of the test without Ferry's settings. The process is killed at the end of the test, if it is
// still there.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, t: t, ended: make(chan struct{})}
	if cmd.Env == nil {
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FERRY_") })
	}
	cmd.Stderr = &p.Log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // It has ended, if all is well.
		<-p.ended
	})
	ready := make(chan string, 1)
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "ready ") {
				ready <- lines.Text()
			}
		}
		p.exitError = cmd.Wait()
	}()
	select {
	case line := <-ready:
		p.parse(line)
	case <-p.ended:
		t.Fatalf("ferry has ended: %v\n%s", p.exitError, p.Log.String())
	case <-time.After(testkit.WaitLimit):
		t.Fatalf("ferry is not ready:\n%s", p.Log.String())
	}
	return p
}

func (p *Process) parse(ready string) {
	p.t.Helper()
	for _, field := range strings.Fields(ready) {
		switch name, value, _ := strings.Cut(field, "="); name {
		case "udp":
			var err error
			first, _, _ := strings.Cut(value, ",")
			if p.UDP, err = netip.ParseAddrPort(first); err != nil {
				p.t.Fatalf("%q: %v", ready, err)
			}
		case "http":
			p.API = value
		case "admin":
			p.Admin = value
		}
	}
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// Exits waits for the end of the process, and fails the test unless it is a good one.
func (p *Process) Exits() {
	p.t.Helper()
	select {
	case <-p.ended:
		if p.exitError != nil {
			p.t.Errorf("ferry ended with %v\n%s", p.exitError, p.Log.String())
		}
	case <-time.After(testkit.WaitLimit):
		p.t.Fatalf("ferry does not end:\n%s", p.Log.String())
	}
}

// Stop ends the process as an operator does.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	p.Exits()
}

// Crash kills the process.
func (p *Process) Crash() {
	p.t.Helper()
	if err := p.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	<-p.ended
}
