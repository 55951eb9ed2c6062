package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/proto"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/webtransport-go"
)

// link is the connection of a player to the relay.
type link interface {
	Send([]byte) error
	Receive() ([]byte, error)
}

// udpLink is a link over plain UDP.
type udpLink struct {
	conn *net.UDPConn
	buf  [2048]byte
}

func (l *udpLink) Send(pkt []byte) error {
	_, err := l.conn.Write(pkt)
	return err
}

func (l *udpLink) Receive() ([]byte, error) {
	n, err := l.conn.Read(l.buf[:])
	return l.buf[:n], err
}

// wsLink is a link over a WebSocket.
type wsLink struct{ conn *ws.Conn }

func (l wsLink) Send(pkt []byte) error {
	return l.conn.Write(context.Background(), ws.MessageBinary, pkt)
}

func (l wsLink) Receive() ([]byte, error) {
	_, pkt, err := l.conn.Read(context.Background())
	return pkt, err
}

// quicLink is a link over datagrams of QUIC.
type quicLink struct{ datagrams }

func (l quicLink) Send(pkt []byte) error    { return l.SendDatagram(pkt) }
func (l quicLink) Receive() ([]byte, error) { return l.ReceiveDatagram(context.Background()) }

// dial opens a link from a socket of its own.
func dial(ctx context.Context, kind string, relay netip.AddrPort, c *wireCounts) (link, error) {
	insecure := &tls.Config{InsecureSkipVerify: true}
	switch kind {
	case "udp":
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(relay))
		return &udpLink{conn: conn}, err
	case "wss":
		h := &http.Client{Transport: &http.Transport{TLSClientConfig: insecure}}
		conn, _, err := ws.Dial(ctx, "wss://"+relay.String(), &ws.DialOptions{HTTPClient: h, CompressionMode: ws.CompressionDisabled})
		return wsLink{conn}, err
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	q := &quic.Transport{Conn: conn}
	if kind == "quic" {
		insecure.NextProtos = []string{bareProtocol}
		s, err := q.Dial(ctx, net.UDPAddrFromAddrPort(relay), insecure, quicConfig(c))
		return quicLink{s}, err
	}
	d := webtransport.Transport{
		TLSClientConfig: insecure, QUICConfig: quicConfig(c),
		DialAddr: func(ctx context.Context, _ string, t *tls.Config, cfg *quic.Config) (*quic.Conn, error) {
			return q.DialEarly(ctx, net.UDPAddrFromAddrPort(relay), t, cfg)
		},
	}
	insecure.NextProtos = []string{http3.NextProtoH3}
	_, s, err := d.Dial(ctx, "https://"+relay.String()+"/", nil)
	return quicLink{s}, err
}

// client plays one player.
type client struct {
	player
	link     link
	bound    chan struct{} // closed at BIND_RECEIVED
	accepted chan struct{} // closed at ACCEPTED
	once     [2]sync.Once
	pkt      []byte // the RELAY that it sends
}

// clients are the players of one process.
type clients struct {
	all      []*client
	counts   *wireCounts // nil: quic-go reports nothing
	sent     atomic.Uint64
	refused  atomic.Uint64
	received atomic.Uint64
}

// playerFigures are what the process of the players prints.
type playerFigures struct {
	Sent, Received, Refused uint64
	Late                    time.Duration // the most that a message was sent later than it should
	Frames, Queue, Packets  uint64
}

const joinWithin = 30 * time.Second

// runPlayers joins all matches, prints a line, and follows the commands of its input: "send RATE
// DURATION", in messages a second of each player, and "burst N", of the first joiner. It prints
// the figures at the end of each.
func runPlayers(kind, file string, size int, trace bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var m match
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	cs := &clients{}
	if trace {
		cs.counts = new(wireCounts)
	}
	for _, p := range m.Players {
		c := &client{player: p, bound: make(chan struct{}), accepted: make(chan struct{})}
		c.pkt = proto.Relay{From: p.ID, To: p.Peer, Payload: make([]byte, size)}.Append(nil)
		cs.all = append(cs.all, c)
	}
	if err := cs.join(kind, m.Addr); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(cs.figures(0)); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var late time.Duration
		switch f := strings.Fields(in.Text()); f[0] {
		case "send":
			var rate float64
			if _, err := fmt.Sscan(f[1], &rate); err != nil {
				return err
			}
			d, err := time.ParseDuration(f[2])
			if err != nil {
				return err
			}
			late = cs.send(rate, d)
		case "burst":
			var n int
			if _, err := fmt.Sscan(f[1], &n); err != nil {
				return err
			}
			for range n {
				cs.sendOne(cs.all[1])
			}
			time.Sleep(300 * time.Millisecond) // for what is on its way
		case "figures":
		}
		if err := out.Encode(cs.figures(late)); err != nil {
			return err
		}
	}
	return nil
}

func (cs *clients) figures(late time.Duration) playerFigures {
	f := playerFigures{Sent: cs.sent.Load(), Received: cs.received.Load(), Refused: cs.refused.Load(), Late: late}
	if c := cs.counts; c != nil {
		f.Frames, f.Queue, f.Packets = c.frames.Load(), c.queue.Load(), c.packets.Load()
	}
	return f
}

// join dials, binds and connects, a few players at a time.
func (cs *clients) join(kind string, relay netip.AddrPort) error {
	ctx, stop := context.WithTimeout(context.Background(), 2*joinWithin)
	defer stop()
	limit := make(chan struct{}, 16)
	errs := make(chan error, len(cs.all))
	for i := 0; i < len(cs.all); i += 2 {
		limit <- struct{}{}
		go func() {
			defer func() { <-limit }()
			for _, c := range cs.all[i : i+2] { // The host first.
				l, err := dial(ctx, kind, relay, cs.counts)
				if err != nil {
					errs <- fmt.Errorf("player %d: %w", i, err)
					return
				}
				c.link = l
				go c.receive(&cs.received)
				if err := c.join(ctx); err != nil {
					errs <- fmt.Errorf("player %d: %w", i, err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range len(cs.all) / 2 {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func (c *client) join(ctx context.Context) error {
	if err := c.repeat(ctx, c.Bind, c.bound); err != nil || c.Connect == nil {
		return err
	}
	return c.repeat(ctx, c.Connect, c.accepted)
}

// repeat sends a message each quarter of a second until the answer has come.
func (c *client) repeat(ctx context.Context, pkt []byte, answered <-chan struct{}) error {
	for {
		if err := c.link.Send(pkt); err != nil {
			return err
		}
		select {
		case <-answered:
			return nil
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *client) receive(received *atomic.Uint64) {
	for {
		pkt, err := c.link.Receive()
		if err != nil {
			return
		}
		switch t, _ := proto.ParseType(pkt); t {
		case proto.TypeRelay:
			received.Add(1)
		case proto.TypeBindReceived:
			c.once[0].Do(func() { close(c.bound) })
		case proto.TypeAccepted:
			c.once[1].Do(func() { close(c.accepted) })
		}
	}
}

func (cs *clients) sendOne(c *client) {
	if c.link.Send(c.pkt) != nil {
		cs.refused.Add(1)
		return
	}
	cs.sent.Add(1)
}

// send sends rate messages a second from each player, evenly spread, and returns how late the
// latest one was.
func (cs *clients) send(rate float64, d time.Duration) (late time.Duration) {
	began, n := time.Now(), len(cs.all)
	total := int(rate * d.Seconds() * float64(n))
	for i := 0; i < total; {
		passed := time.Since(began)
		due := min(total, int(passed.Seconds()*rate*float64(n)))
		if i < due {
			at := time.Duration(float64(i) / (rate * float64(n)) * float64(time.Second))
			late = max(late, passed-at)
		}
		for ; i < due; i++ {
			cs.sendOne(cs.all[i%n])
		}
		time.Sleep(time.Millisecond)
	}
	return late
}
