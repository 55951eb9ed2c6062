package cluster

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between an API and a relay. It belongs to the test that made it.
type proxy struct {
	listener net.Listener
	to       string
	// cut says that every connection loses what the relay sends: the first byte of
	// it closes them.
	cut atomic.Bool

	mu    sync.Mutex // guards the following fields
	conns []net.Conn
	open  []*atomic.Bool // of each connection: it loses what the relay sends
	ended bool
	all   sync.WaitGroup
}

// newProxy returns a proxy that runs until the test ends.
func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.closeAll()
		p.all.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		cut := new(atomic.Bool)
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.open = append(p.open, cut)
		if p.ended { // A dial may outlive the call that wanted it.
			in.Close()
			out.Close()
		}
		p.mu.Unlock()
		p.all.Go(func() { _, _ = io.Copy(out, in); out.Close() })
		p.all.Go(func() { p.back(in, out, cut); in.Close(); out.Close() })
	}
}

// back copies what the relay sends, until it is cut.
func (p *proxy) back(in, out net.Conn, cut *atomic.Bool) {
	buf := make([]byte, 16<<10)
	for {
		n, err := out.Read(buf)
		if err != nil || p.cut.Load() || cut.Load() {
			return
		}
		if _, err := in.Write(buf[:n]); err != nil {
			return
		}
	}
}

// cutOpen has the connections that are open now lose what the relay sends.
func (p *proxy) cutOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cut := range p.open {
		cut.Store(true)
	}
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, c := range p.conns {
		c.Close()
	}
}
