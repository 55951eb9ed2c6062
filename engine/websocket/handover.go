package websocket

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

// A process that hands its relay over keeps its connections: the state of TLS cannot leave it.
// It passes each message on over a link to the process that has the relay, and back. A link is a
// Unix socket of packets, so that the end of the relay's side can be handed over again with
// whatever waits in it. A packet is the serial of a connection, little-endian, and one message.
// To the relay, no message means that the connection has ended, and one byte is a sign of life;
// from it, no message answers that.

// aliveOverLink stands for a sign of life: no message of a client has one byte.
var aliveOverLink [1]byte

const serialSize = 8

// link is one side of a link. Any goroutine may send.
type link struct {
	conn *net.UnixConn
	done chan struct{} // closed when the goroutine that reads it has ended

	mu      sync.RWMutex          // guards serials
	serials map[uint64]netip.Addr // of the clients
}

// private implements [privateapi.WebSocket].
type private struct{ *Transport }

// Private returns what the programs of this module use besides. It may change in any version.
func (t *Transport) Private() privateapi.WebSocket { return private{t} }

type held struct {
	Serials [][]uint64 // by link
	// Clients are the addresses of the clients of Serials, each invalid if it is not known. Older versions have none.
	Clients [][]netip.Addr `json:",omitempty"`
	Next    uint64         // no connection of earlier processes has this serial or a higher one
}

type linked struct {
	mu    sync.RWMutex // guards links
	links []*link      // to the processes before this one
	to    atomic.Pointer[link]
}

func (l *link) send(serial uint64, pkt []byte) bool {
	var room [serialSize + maxMessage]byte
	binary.LittleEndian.PutUint64(room[:], serial)
	packet := room[:serialSize+copy(room[serialSize:], pkt)]
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return false
	}
	var refused error
	err = raw.Write(func(fd uintptr) bool {
		refused = sendPacket(fd, packet)
		return true
	})
	return err == nil && refused == nil
}

// wait is send that waits for room, so that TCP slows the client down.
func (l *link) wait(serial uint64, pkt []byte) bool {
	packet := append(binary.LittleEndian.AppendUint64(make([]byte, 0, serialSize+len(pkt)), serial), pkt...)
	_, err := l.conn.Write(packet)
	return err == nil
}

func (l *link) receive(each func(serial uint64, pkt []byte)) {
	defer close(l.done)
	var room [serialSize + maxMessage]byte
	for {
		n, err := l.conn.Read(room[:])
		if err != nil || n == 0 {
			return
		}
		if n >= serialSize {
			each(binary.LittleEndian.Uint64(room[:]), room[serialSize:n])
		}
	}
}

func (l *link) client(serial uint64) (client netip.Addr, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	client, ok = l.serials[serial]
	return client, ok
}

func (l *link) has(serial uint64) bool {
	_, ok := l.client(serial)
	return ok
}

func (l *link) forget(serial uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.serials, serial)
}

func (t *Transport) sendHeld(serial uint64, pkt []byte) bool {
	t.linked.mu.RLock()
	defer t.linked.mu.RUnlock()
	for _, l := range t.linked.links {
		if l.has(serial) {
			if !l.send(serial, pkt) {
				return t.drop(dropFull)
			}
			return true
		}
	}
	return t.drop(dropGone)
}

func (t *Transport) isHeld(serial uint64) bool {
	t.linked.mu.RLock()
	defer t.linked.mu.RUnlock()
	return slices.ContainsFunc(t.linked.links, func(l *link) bool { return l.has(serial) })
}

// eachHeld calls do for each connection that a process before this one keeps.
func (t *Transport) eachHeld(do func(l *link, serial uint64, client netip.Addr)) {
	t.linked.mu.RLock()
	defer t.linked.mu.RUnlock()
	for _, l := range t.linked.links {
		l.mu.RLock()
		clients := maps.Clone(l.serials)
		l.mu.RUnlock()
		for serial, client := range clients {
			do(l, serial, client)
		}
	}
}

func (t private) TakeOver(files []*os.File, state json.RawMessage) error {
	var held held
	if err := json.Unmarshal(state, &held); err != nil {
		return fmt.Errorf("websocket: connections of another process: %w", err)
	}
	return t.takeOver(files, held)
}

func (t *Transport) takeOver(files []*os.File, held held) error {
	if len(files) != len(held.Serials) {
		return errors.New("websocket: the links do not match the connections")
	}
	t.serial.Store(max(t.serial.Load(), held.Next))
	for i, f := range files {
		conn, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			return err
		}
		l := &link{conn: conn.(*net.UnixConn), done: make(chan struct{}), serials: make(map[uint64]netip.Addr)}
		for n, serial := range held.Serials[i] {
			var client netip.Addr
			if i < len(held.Clients) && n < len(held.Clients[i]) {
				client = held.Clients[i][n]
			}
			l.serials[serial] = client
		}
		t.linked.links = append(t.linked.links, l)
	}
	return nil
}

func (t private) Links() (links []syscall.Conn, far, near *os.File, err error) {
	t.linked.mu.RLock()
	defer t.linked.mu.RUnlock()
	for _, l := range t.linked.links {
		links = append(links, l.conn)
	}
	near, far, err = packetPair()
	return links, far, near, err
}

func (t private) Detach(ours *os.File) (json.RawMessage, error) {
	held, err := t.detach(ours)
	if err != nil {
		return nil, err
	}
	return json.Marshal(held)
}

func (t *Transport) detach(ours *os.File) (held held, err error) {
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return held, err
	}
	t.linked.to.Store(&link{conn: conn.(*net.UnixConn), done: make(chan struct{})})
	t.linked.mu.RLock()
	for _, l := range t.linked.links {
		_ = l.conn.SetReadDeadline(time.Now()) // The rest is for the other process.
		<-l.done
		l.mu.RLock()
		serials, clients := make([]uint64, 0, len(l.serials)), make([]netip.Addr, 0, len(l.serials))
		for serial, client := range l.serials {
			serials, clients = append(serials, serial), append(clients, client)
		}
		l.mu.RUnlock()
		held.Serials, held.Clients = append(held.Serials, serials), append(held.Clients, clients)
	}
	t.linked.mu.RUnlock()
	t.admission.stop()
	own, clients := []uint64{}, []netip.Addr{}
	for i := range t.shards {
		for _, c := range t.shards[i].snapshot() {
			own, clients = append(own, c.serial), append(clients, c.place.client)
		}
	}
	held.Serials, held.Clients, held.Next = append(held.Serials, own), append(held.Clients, clients), t.serial.Load()+1
	return held, nil
}

func (t private) Drain(ctx context.Context) {
	t.linked.mu.Lock()
	for _, l := range t.linked.links {
		_ = l.conn.Close()
	}
	t.linked.links = nil
	t.linked.mu.Unlock()
	l := t.linked.to.Load()
	go l.receive(func(serial uint64, pkt []byte) { t.Send(serial, pkt) })
	ended := make(chan struct{})
	go func() {
		t.admission.conns.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-l.done:
	case <-ctx.Done():
	}
	t.endAll(endStopped)
	<-ended
	_ = l.conn.Close()
	<-l.done
}

// serveLinks returns when all links have ended.
func (t *Transport) serveLinks(in engine.Intake) {
	var all sync.WaitGroup
	for _, l := range slices.Clone(t.linked.links) {
		all.Go(func() {
			l.receive(func(serial uint64, pkt []byte) {
				switch {
				case len(pkt) == 0:
					l.forget(serial)
				case !l.has(serial):
					t.drop(dropGone) // Its network is banned.
				case len(pkt) == len(aliveOverLink):
					in.Deliver(serial, nil)
				case in.Deliver(serial, pkt):
					t.counts.received.Add(1)
					t.counts.receivedBytes.Add(uint64(len(pkt)))
				default:
					t.drop(dropBusy)
				}
			})
		})
	}
	all.Wait()
}

func (t *Transport) closeLinks() {
	t.linked.mu.RLock()
	defer t.linked.mu.RUnlock()
	for _, l := range t.linked.links {
		_ = l.conn.Close()
	}
}
