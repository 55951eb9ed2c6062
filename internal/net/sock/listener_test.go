package sock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func newTCP(t testing.TB) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestRetryListener: errors of accept(2) end nothing, attempts are apart, and Close ends the
// wait.
func TestRetryListener(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.ECONNABORTED} {
		var failed, recovered int
		l := NewRetryListener(newTCP(t), RetryConfig{OnError: func(err error) {
			failed++
			if !errors.Is(err, failure) {
				t.Errorf("%v is reported as %v", failure, err)
			}
		}, OnRecover: func() { recovered++ }})
		n, begin := 0, time.Now()
		here, there := net.Pipe()
		conn, err := l.accept(func() (net.Conn, error) {
			if n++; n <= 3 {
				return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", failure)}
			}
			return here, nil
		}, func() net.Conn { return nil })
		if err != nil || conn != here || failed != 3 || recovered != 1 || time.Since(begin) < retryFirst*7 {
			t.Errorf("%v: %v after %v, failed %d, recovered %d", failure, err, time.Since(begin), failed, recovered)
		}
		_, _ = here.Close(), there.Close()
		var wait sync.WaitGroup
		wait.Go(func() {
			_, err = l.accept(func() (net.Conn, error) { return nil, failure }, func() net.Conn { return nil })
		})
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wait.Wait()
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
}

// TestReservedDescriptor runs in a child, whose limit of descriptors is its own.
func TestReservedDescriptor(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no such limit")
	}
	if out, err := testkit.ChildCommand("descriptors").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// descriptorsChild uses all descriptors. One listener with a reserve then answers one client
// after the other, one without answers when there are descriptors again.
func descriptorsChild() (err error) {
	var lines sync.Map
	serve := func(name string, reserve bool) *RetryListener {
		tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			panic(err)
		}
		l := NewRetryListener(tcp, RetryConfig{Reserve: reserve, OnError: func(err error) { lines.Store(name, err) }})
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(conn, IsReserved(conn))
				_ = conn.Close()
			}
		}()
		return l
	}
	with, without := serve("with", true), serve("without", false)
	dial := func(l *RetryListener) net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			panic(err)
		}
		return conn
	}
	ask := func(l *RetryListener) (string, error) {
		conn := dial(l)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		text, err := io.ReadAll(conn)
		return string(text), err
	}
	if text, err := ask(with); text != "false" {
		return fmt.Errorf("at first %q, %w", text, err)
	}
	held, err := holdDescriptors()
	if err != nil {
		return err
	}
	// Each client takes one of the held descriptors for itself.
	for answered, tries := 0, 0; answered < 5; tries++ {
		_ = held[0].Close()
		held = held[1:]
		text, err := ask(with)
		f, openErr := os.Open(os.DevNull) // The client's again.
		if openErr == nil {
			held = append(held, f)
		}
		if text == "false" && tries < 20 {
			// accept(2) holds a descriptor while it looks for a connection: one was free after all.
			f, err := os.Open(os.DevNull)
			if err == nil {
				held = append(held, f)
			}
			continue
		}
		if text != "true" {
			return fmt.Errorf("without descriptors %q, %w", text, err)
		}
		answered++
		if !testkit.Poll(testkit.WaitLimit, func() bool { with.mu.Lock(); defer with.mu.Unlock(); return with.spare != nil }) {
			return errors.New("nothing is in reserve again")
		}
	}
	_ = held[0].Close()
	held = held[1:]
	waiting := dial(without)
	defer waiting.Close()
	_ = waiting.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if text, err := io.ReadAll(waiting); len(text) > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("without descriptors and reserve %q, %w", text, err)
	}
	for _, f := range held {
		_ = f.Close()
	}
	_ = waiting.SetReadDeadline(time.Now().Add(10 * time.Second))
	if text, err := io.ReadAll(waiting); string(text) != "false" {
		return fmt.Errorf("with descriptors again %q, %w", text, err)
	}
	if text, err := ask(with); text != "false" {
		return fmt.Errorf("with descriptors again %q, %w", text, err)
	}
	if _, ok := lines.Load("without"); !ok {
		return errors.New("no error was reported")
	}
	return errors.Join(with.Close(), without.Close())
}

// descriptorLimit is the limit of the process that has no descriptor left.
const descriptorLimit = 64

func holdDescriptors() (held []*os.File, err error) {
	if err := lowerDescriptors(descriptorLimit); err != nil {
		return nil, err
	}
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			if !strings.Contains(err.Error(), "too many open files") {
				return nil, err
			}
			return held, nil
		}
		held = append(held, f)
	}
}
