// Package clienttest helps to test clients in other languages against a relay. A client is a program
// that reads commands and prints lines ([Program]); [Gate] stands between it and the relay and moves,
// delays or drops its datagrams; [Host] and [Join] are its peers in Go; [Vectors] are the golden packets.
package clienttest

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Within bounds each wait for a program. A session that gives up does so after 64 s.
const Within = 2 * time.Minute

// Program is a running client. Its methods may be called from several goroutines.
type Program struct {
	*exec.Cmd
	T testing.TB
	// Ignores reports whether a line says nothing to a test; nil: none. Lines that begin with
	// "message " say nothing, except to a test that waits for them.
	Ignores func(line string) bool

	in    io.WriteCloser
	mu    sync.Mutex // guards what follows
	lines []string
	read  int // lines that Next has returned or skipped
	ended chan struct{}
}

// Start starts a program, which gets commands on standard input and prints lines to standard output, and to
// standard error unless cmd.Stderr is set. It ends with the test: its input is closed, or its context is
// cancelled.
func Start(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Stderr == nil {
		cmd.Stderr = cmd.Stdout
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := Attach(t, cmd, in, out)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// Attach returns a started command that has its commands and lines on other streams.
func Attach(t testing.TB, cmd *exec.Cmd, in io.WriteCloser, out io.Reader) *Program {
	p := &Program{Cmd: cmd, T: t, in: in, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
		}
	}()
	return p
}

// Close closes the program's input, waits for its end and returns the error of that.
func (p *Program) Close() error {
	_ = p.in.Close()
	<-p.ended
	return p.Wait()
}

// String returns all that the program has printed.
func (p *Program) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// Find returns the first of all lines with that beginning, "" if there is none, and their number.
func (p *Program) Find(beginning string) (first string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if strings.HasPrefix(line, beginning) {
			if n++; n == 1 {
				first = line
			}
		}
	}
	return first, n
}

// Do gives a command.
func (p *Program) Do(command string) {
	p.T.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.T.Fatalf("%q: %v\n%s", command, err, p)
	}
}

// Repeat gives a command each 50 ms until stop is called.
func (p *Program) Repeat(command string) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			_, _ = io.WriteString(p.in, command+"\n")
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	return sync.OnceFunc(func() { close(done); running.Wait() })
}

// next returns the next line, if there is one within limit. The test fails if the program has ended.
func (p *Program) next(limit time.Duration, what string) (line string, ok bool) {
	p.T.Helper()
	ended := false
	testkit.Poll(limit, func() bool {
		select {
		case <-p.ended:
			ended = true
		default:
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if ok = p.read < len(p.lines); ok {
			line = p.lines[p.read]
			p.read++
		}
		return ok || ended
	})
	if ended && !ok {
		p.T.Fatalf("it ends, and does not print %s:\n%s", what, p)
	}
	return line, ok
}

// Line returns the next line.
func (p *Program) Line() string {
	p.T.Helper()
	line, ok := p.next(Within, "a line")
	if !ok {
		p.T.Fatalf("it prints nothing more:\n%s", p)
	}
	return line
}

// beginsWith reports whether words are the first of a line, and returns the rest.
func beginsWith(line, words string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(line, words)
	return strings.TrimSpace(rest), ok && (rest == "" || rest[0] == ' ')
}

func (p *Program) ignores(line string, besides []string) bool {
	return strings.HasPrefix(line, "message ") || slices.Contains(besides, line) || p.Ignores != nil && p.Ignores(line)
}

// Expect waits for a line that begins with these words and returns what follows them. It fails at
// another line that is neither ignored nor one of those besides.
func (p *Program) Expect(words string, besides ...string) (rest string) {
	p.T.Helper()
	for {
		line, ok := p.next(Within, fmt.Sprintf("%q", words))
		if !ok {
			p.T.Fatalf("it never prints %q:\n%s", words, p)
		}
		if rest, ok := beginsWith(line, words); ok {
			return rest
		}
		if !p.ignores(line, besides) {
			p.T.Fatalf("it prints %q, want %q", line, words)
		}
	}
}

// Await waits for a line that begins with these words, and skips all others.
func (p *Program) Await(words string) {
	p.T.Helper()
	for {
		line, ok := p.next(Within, fmt.Sprintf("%q", words))
		if !ok {
			p.T.Fatalf("it never prints %q:\n%s", words, p)
		}
		if _, ok := beginsWith(line, words); ok {
			return
		}
	}
}

// Reach sends a text to a peer that sends it back, until it is back: datagrams may be lost. Lines
// that are neither ignored nor one of those besides must not come meanwhile.
func (p *Program) Reach(text string, besides ...string) {
	p.T.Helper()
	for late := time.Now().Add(Within); time.Now().Before(late); {
		p.Do("send " + text)
		for again := time.Now().Add(200 * time.Millisecond); ; {
			line, ok := p.next(time.Until(again), "an answer")
			if !ok {
				break
			}
			if line == "message "+text {
				return
			}
			if !p.ignores(line, besides) {
				p.T.Fatalf("it prints %q instead of an answer", line)
			}
		}
	}
	p.T.Fatal("no answer")
}
