package engine

import (
	"sync"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// postman sends single datagrams for the handshakes of [Records], which belong
// to no batch. Any goroutine may use it.
type postman struct {
	mu  sync.Mutex // guards out
	out egress
}

func newPostman(s *Server) *postman { return &postman{out: s.egress(0, 1)} }

func (p *postman) send(to endpoint.Endpoint, pkt []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if tx := p.out.tx[to.Listener()]; tx.Add(to, pkt) {
		p.out.conns[to.Listener()].Send(tx)
	}
}
