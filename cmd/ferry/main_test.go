package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

var binary string

func TestMain(m *testing.M) {
	testkit.DefaultParallel(8)
	// Under nohup SIGHUP is ignored, and programs would inherit that: a signal with a handler is
	// not inherited as ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	var err error
	if binary, err = ferrytest.Build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ferrytest.Main(m)
}

// run executes one command line and returns the exit code, without signals.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	return streams{environ, stdout, stderr, new(signals)}.run(ctx, args)
}

// patience is how long anything may take that has to happen.
const patience = 30 * time.Second

type text = testkit.LogBuffer

type ferryProcess struct {
	*exec.Cmd
	t      *testing.T
	lines  chan string // of standard output
	stderr text
	ended  chan struct{}
}

// launch starts ferry with an environment that holds only env.
func launch(t *testing.T, env []string, args ...string) *ferryProcess {
	t.Helper()
	return start(t, exec.Command(binary, args...), env)
}

func start(t *testing.T, cmd *exec.Cmd, env []string) *ferryProcess {
	t.Helper()
	p := &ferryProcess{Cmd: cmd, t: t, lines: make(chan string, 100), ended: make(chan struct{})}
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

func (p *ferryProcess) untilReady() (lines []string) {
	p.t.Helper()
	timer := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				<-p.ended
				p.t.Fatalf("%v before it was ready: %s", p.ProcessState, p.stderr.String())
			}
			if lines = append(lines, line); strings.HasPrefix(line, "ready ") || strings.Contains(line, `"msg":"ready"`) {
				return lines
			}
		case <-timer:
			p.t.Fatalf("not ready after %v: %q, %s", patience, lines, p.stderr.String())
		}
	}
}

// addresses takes the ready line apart, as text or as JSON.
func addresses(ready string) map[string]string {
	found := make(map[string]string)
	if json.Unmarshal([]byte(ready), &found) == nil {
		return found
	}
	for _, word := range strings.Fields(ready) {
		if name, value, ok := strings.Cut(word, "="); ok {
			found[name] = value
		}
	}
	return found
}

func (p *ferryProcess) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end and returns the exit code, -1 after a signal.
func (p *ferryProcess) exit() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("still there after %v: %s", patience, p.stderr.String())
	}
	return p.ProcessState.ExitCode()
}

func (p *ferryProcess) says(want string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(p.stderr.String(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("it does not say %q: %s", want, p.stderr.String())
		}
	}
}

// TestSignals: each signal does more than the one before.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		drain error // of a drain that is wanted
		wants bool
		count int
		did   []string
		says  string
	}{
		{"no drain", nil, false, 1, []string{"end"}, ""},
		{"no drain, twice", nil, false, 2, []string{"end", "exit"}, "another signal"},
		{"drain", nil, true, 1, []string{"drain"}, ""},
		{"drain, twice", nil, true, 2, []string{"drain", "end"}, ""},
		{"drain, three times", nil, true, 3, []string{"drain", "end", "exit"}, "another signal"},
		{"no drain is possible", errors.New("the relay has ended"), true, 1, []string{"drain", "end"}, "the relay has ended"},
	} {
		var mu sync.Mutex
		var did []string
		var said strings.Builder
		happened := make(chan struct{}, 10)
		do := func(what string) {
			mu.Lock()
			did = append(did, what)
			mu.Unlock()
			happened <- struct{}{}
		}
		s := new(signals)
		if c.wants {
			s.set(actions{drain: func() error { do("drain"); return c.drain }})
		}
		received := make(chan os.Signal)
		var obeying sync.WaitGroup
		obeying.Go(func() {
			s.handle(received, func() { do("end") }, &said, func() { do("exit") })
		})
		for i := range c.count {
			received <- os.Interrupt
			if i < len(c.did) {
				<-happened
			}
		}
		for range len(c.did) - c.count {
			<-happened
		}
		close(received)
		obeying.Wait()
		if !slices.Equal(did, c.did) || !strings.Contains(said.String(), c.says) {
			t.Errorf("%s: did %q, want %q; said %q", c.name, did, c.did, said.String())
		}
	}
}

// TestHangUp: SIGHUP reads the settings again where there are any, and is no step
// towards the end then; elsewhere it is a signal like the others.
func TestHangUp(t *testing.T) {
	t.Parallel()
	did := make(chan string, 10)
	s, received := new(signals), make(chan os.Signal)
	s.set(actions{reload: func() { did <- "reload" }})
	var obeying sync.WaitGroup
	obeying.Go(func() {
		s.handle(received, func() { did <- "end" }, io.Discard, func() { did <- "exit" })
	})
	for i, step := range []struct {
		signal os.Signal
		want   string
	}{{syscall.SIGHUP, "reload"}, {syscall.SIGHUP, "reload"}, {os.Interrupt, "end"}, {syscall.SIGHUP, "exit"}} {
		if i == 3 {
			s.set(actions{})
		}
		received <- step.signal
		if got := <-did; got != step.want {
			t.Errorf("signal %d, %v: %s, want %s", i, step.signal, got, step.want)
		}
	}
	close(received)
	obeying.Wait()
}
