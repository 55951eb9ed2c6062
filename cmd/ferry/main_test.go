package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
)

// binary is ferry itself, built once by TestMain and only read afterwards.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ferry-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "ferry")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// patience is how long anything may take that has to happen.
const patience = 30 * time.Second

// text collects what a process writes.
type text = testkit.LogBuffer

// process is ferry as the system sees it.
type process struct {
	*exec.Cmd
	t      *testing.T
	lines  chan string // of standard output
	stderr text
	ended  chan struct{}
}

// launch starts ferry with an environment that holds only env.
func launch(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(binary, args...), t: t, lines: make(chan string, 100), ended: make(chan struct{})}
	p.Env = append(env, "PATH="+os.Getenv("PATH"))
	p.Stderr = &p.stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		_ = p.Wait() // ProcessState has it.
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill() // It has ended, if all is well.
		<-p.ended
	})
	return p
}

// untilReady returns the lines that the process prints, up to the ready line.
func (p *process) untilReady() (lines []string) {
	p.t.Helper()
	timer := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				<-p.ended
				p.t.Fatalf("%v before it was ready: %s", p.ProcessState, p.stderr.String())
			}
			if lines = append(lines, line); strings.HasPrefix(line, "ready ") {
				return lines
			}
		case <-timer:
			p.t.Fatalf("not ready after %v: %q, %s", patience, lines, p.stderr.String())
		}
	}
}

// addresses takes the ready line apart.
func addresses(ready string) map[string]string {
	found := make(map[string]string)
	for _, word := range strings.Fields(ready) {
		if name, value, ok := strings.Cut(word, "="); ok {
			found[name] = value
		}
	}
	return found
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end and returns the exit code, -1 after a signal.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("still there after %v: %s", patience, p.stderr.String())
	}
	return p.ProcessState.ExitCode()
}

// says waits until standard error holds want.
func (p *process) says(want string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(p.stderr.String(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("it does not say %q: %s", want, p.stderr.String())
		}
	}
}
