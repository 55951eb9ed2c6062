package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pion/stun/v4"

	"github.com/ferryrelay/ferry/bench"
)

const (
	// startWithin bounds the start of a relay. A million reservations take most of it.
	startWithin = 2 * time.Minute
	// stopWithin bounds the end of a relay after SIGTERM.
	stopWithin = time.Second
)

// server is the process of a relay.
type server struct {
	dialect   bench.Dialect
	transport string // of its clients; empty: UDP

	cmd    *exec.Cmd
	lines  chan string   // lines of its output
	ended  chan struct{} // closed when it has ended
	errors tail
}

// tail keeps the end of a process's error output.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 1024

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}

// start runs a program on the relays' processor and in their network. The
// kernel kills it when the calling thread ends. It gets only PATH of this
// process's environment, so that settings of the Go runtime affect no relay.
func start(o options, dir string, argv ...string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{lines: make(chan string, 16), ended: make(chan struct{})}
	argv = slices.Concat(o.net().enter, []string{self, "pin", strconv.Itoa(o.serverCPU)}, argv)
	s.cmd = exec.Command(argv[0], argv[1:]...)
	s.cmd.Dir, s.cmd.Stderr = dir, &s.errors
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	// A group of its own, so that an interrupt from the terminal does not end it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go s.follow(out)
	return s, nil
}

// follow passes on the output lines and waits for the end of the process. It
// drops lines without a reader.
func (s *server) follow(out io.Reader) {
	in := bufio.NewScanner(out)
	for in.Scan() {
		select {
		case s.lines <- in.Text():
		default:
		}
	}
	_ = s.cmd.Wait()
	close(s.ended)
}

// pid returns the process to measure.
func (s *server) pid() int { return s.cmd.Process.Pid }

// line waits for the first line that accept accepts.
func (s *server) line(ctx context.Context, accept func(string) bool) error {
	timeout := time.NewTimer(startWithin)
	defer timeout.Stop()
	for {
		select {
		case l := <-s.lines:
			if accept(l) {
				return nil
			}
		case <-s.ended:
			return fmt.Errorf("%w: %s", errEnded, s.errors.String())
		case <-timeout.C:
			return fmt.Errorf("not ready within %v", startWithin)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// address waits for a line with the relay's address.
func (s *server) address(ctx context.Context) (addr netip.AddrPort, err error) {
	err = s.line(ctx, func(l string) bool {
		addr, err = netip.ParseAddrPort(strings.TrimPrefix(l, "ready udp="))
		return err == nil
	})
	return addr, err
}

// untilBinding waits until a server answers a Binding request.
func (s *server) untilBinding(ctx context.Context, addr netip.AddrPort) error {
	deadline := time.Now().Add(startWithin)
	for {
		err := requestBinding(addr)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case s.dead():
			return fmt.Errorf("%w: %s", errEnded, s.errors.String())
		case time.Now().After(deadline):
			return fmt.Errorf("not ready within %v: %w", startWithin, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func requestBinding(addr netip.AddrPort) error {
	c, err := stun.Dial("udp4", addr.String())
	if err != nil {
		return err
	}
	defer c.Close()
	answered := errors.New("it refuses a Binding request")
	return errors.Join(c.Do(stun.MustBuild(stun.TransactionID, stun.BindingRequest), func(e stun.Event) {
		if answered = e.Error; answered == nil && e.Message.Type != stun.BindingSuccess {
			answered = errors.New(e.Message.Type.String())
		}
	}), answered)
}

func (s *server) dead() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// stop ends the process and waits for its end.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(stopWithin):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// freePort returns a UDP port that is currently free on loopback.
func freePort() (int, error) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port, nil
}
