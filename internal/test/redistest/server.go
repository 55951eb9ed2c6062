package redistest

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// patience bounds what a server may take for anything: plenty for a machine
// that is busy with other tests.
const patience = 30 * time.Second

// startTries is how often a server is started on another port: the one that was
// free may have been taken meanwhile.
const startTries = 5

// Server is a Redis server on the loopback. Its methods are for the goroutine
// of the test.
type Server struct {
	// Addr is host:port, the same after a restart, and URL the redis:// of it.
	Addr, URL string

	t    testing.TB
	args []string
	dir  string
	out  *buffer
	proc *process
}

// Start starts a server that keeps nothing on disk, and waits until it answers.
// args are further settings, for example "--maxmemory", "10mb".
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if name := os.Getenv("REDIS_SERVER"); name == "" {
		testkit.Program(t, program(), "redis-server")
	} else if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("REDIS_SERVER: %v", err)
	}
	var s *Server
	for range startTries {
		s = &Server{t: t, dir: t.TempDir(), out: &buffer{}}
		port := testkit.FreePort(t)
		s.Addr = net.JoinHostPort("127.0.0.1", port)
		s.URL = "redis://" + s.Addr
		s.args = append([]string{
			"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no", "--daemonize", "no",
			// A replica waits for no other one, and soon has an offset, without which no node lists it.
			"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
		}, args...)
		if s.start() == nil {
			t.Cleanup(s.Stop)
			return s
		}
		s.proc.kill()
	}
	t.Fatalf("redis-server does not start:\n%s", s.out)
	return nil
}

// program is what is started: another that takes the same settings, such as
// valkey-server, by the environment.
func program() string { return cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server") }

// start starts the process and waits until it answers.
func (s *Server) start() error {
	var err error
	if s.proc, err = startProcess(s.out, s.args); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if s.proc.ended() {
			return fmt.Errorf("redis-server on %s ended", s.Addr)
		}
		if reply, err := ask(s.Addr, "PING"); err == nil && (reply == "+PONG" || strings.HasPrefix(reply, "-NOAUTH")) {
			return nil // It is up, though it may want a password.
		}
	}
	return fmt.Errorf("redis-server on %s does not answer", s.Addr)
}

// Do sends a command, with its words separated by spaces, and returns the
// answer as the protocol has it, without the last line break.
func (s *Server) Do(command string) string {
	s.t.Helper()
	reply, err := ask(s.Addr, command)
	if err != nil {
		s.t.Fatalf("redis at %s, %s: %v", s.Addr, command, err)
	}
	return reply
}

// DoAs is Do by a user of the server.
func (s *Server) DoAs(user, password, command string) string {
	s.t.Helper()
	reply, err := askAll(s.Addr, "AUTH "+user+" "+password, command)
	if err != nil {
		s.t.Fatalf("redis at %s, %s by %s: %v", s.Addr, command, user, err)
	}
	return reply
}

// Pause stops the process where it is: connections stay, nothing answers.
func (s *Server) Pause() { s.signal(stop) }

// Resume lets it go on.
func (s *Server) Resume() { s.signal(goOn) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.proc.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("redis at %s, %v: %v", s.Addr, sig, err)
	}
}

// Kill ends the process without a warning, and waits until it is gone. What it
// had in memory is lost.
func (s *Server) Kill() { s.proc.kill() }

// Stop ends the process. Stopping twice, or what was killed, does nothing.
func (s *Server) Stop() { s.proc.kill() }

// Restart starts the process again on the same port, after Kill or Stop, and
// waits until it answers. It is empty, or has what the last SAVE command wrote.
func (s *Server) Restart() {
	s.t.Helper()
	testkit.NoProblemWithin(s.t, patience, "redis-server starts again", func() string {
		if err := s.start(); err != nil { // Its port may be taken for a moment.
			s.proc.kill()
			return fmt.Sprintf("%v:\n%s", err, s.out)
		}
		return ""
	})
}

// write puts a file into the directory of the server.
func (s *Server) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// process is a running redis-server.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{}
}

// startProcess starts redis-server from a thread that lives as long as it does:
// the kernel ends the child with the thread that started it.
func startProcess(out *buffer, args []string) (*process, error) {
	p := &process{cmd: exec.Command(program(), args...), gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = endWithParent()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Not unlocked: the thread ends with the goroutine.
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // How it ended is of no interest: it is killed.
		}
		close(p.gone)
	}()
	return p, <-started
}

func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

func (p *process) kill() {
	if p.cmd.Process != nil {
		_ = p.cmd.Process.Kill() // Fails if it is gone.
	}
	<-p.gone
}

// buffer holds the last words of a server.
type buffer struct {
	mu   sync.Mutex // guards the following field
	text bytes.Buffer
}

// maxWords bounds what is kept of a server's output.
const maxWords = 64 << 10

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.text.Len() > maxWords {
		b.text.Reset()
	}
	return b.text.Write(p)
}

// String returns what a server wrote last.
func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
