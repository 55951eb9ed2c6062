package blackbox

import (
	"bytes"
	"crypto/tls"
	endian "encoding/binary"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/proto"
)

var nativeDuration = flag.Duration("native.duration", time.Second,
	"how long each version of TLS carries bursts to native clients, after ten rounds")

const (
	// nativeBuffer is the size of the buffer into which a native client decrypts.
	nativeBuffer = 2944
	// nativeStep is how much ciphertext it takes from TCP at a time.
	nativeStep = nativeBuffer / 2
)

// native is a player by wss that handles TLS as Unity's native client does. Each
// step takes some bytes from TCP and decrypts all whole records into a small
// buffer. If a record does not fit, the client drops the ciphertext that it
// holds, and the next record fails its MAC.
type native struct {
	t    *testing.T
	id   proto.AllocationID
	peer proto.AllocationID // the host, of a player
	tcp  net.Conn
	tls  *tls.Conn

	overhead int    // bytes of a record besides its plaintext
	held     []byte // ciphertext without a whole record
	whole    []byte // the record that tls may read
	opened   bool   // the handshake is done
	plain    []byte // at most nativeBuffer bytes
	dropped  int    // records
}

// nativeCiphertext is what tls reads: one record at a time after the handshake.
type nativeCiphertext struct {
	net.Conn
	c *native
}

// Read implements [net.Conn]. Without a record it returns an error that tls
// takes as temporary.
func (r nativeCiphertext) Read(p []byte) (int, error) {
	if !r.c.opened {
		return r.Conn.Read(p)
	}
	if len(r.c.whole) == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(p, r.c.whole)
	r.c.whole = r.c.whole[n:]
	return n, nil
}

// nativeOverhead is the overhead of a record with AES-GCM: header, explicit nonce
// or content type, tag.
var nativeOverhead = map[uint16]int{tls.VersionTLS12: 5 + 8 + 16, tls.VersionTLS13: 5 + 1 + 16}

func dialNative(t *testing.T, id identity, addr string, version uint16, a allocation) *native {
	t.Helper()
	tcp, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &native{t: t, id: proto.AllocationID(a.AllocationIDBytes), tcp: tcp, overhead: nativeOverhead[version]}
	c.tls = tls.Client(nativeCiphertext{tcp, c}, &tls.Config{
		RootCAs: id.pool, ServerName: id.name, MinVersion: version, MaxVersion: version,
		CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	})
	t.Cleanup(func() { tcp.Close() })
	c.wait()
	if err := c.tls.Handshake(); err != nil {
		t.Fatal(err)
	}
	c.opened = true
	if _, err := io.WriteString(c.tls, "GET / HTTP/1.1\r\nHost: "+id.name+"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for !bytes.Contains(c.plain, []byte("\r\n\r\n")) {
		c.step()
	}
	head, rest, _ := bytes.Cut(c.plain, []byte("\r\n\r\n"))
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 101 ")) {
		t.Fatalf("the upgrade earned %q", head)
	}
	c.plain = rest
	cred := a.credentials(t)
	c.send(enginetest.SignedBind(cred, 0))
	c.expect(proto.BindReceived{}.Append(nil))
	return c
}

func (c *native) connect(a allocation) {
	c.t.Helper()
	c.send(proto.ConnectRequest{ID: c.id, ConnectionData: a.HostConnectionData}.Append(nil))
	accepted, err := proto.ParseAccepted(c.receive(1)[0])
	if err != nil {
		c.t.Fatal(err)
	}
	c.peer = accepted.From
}

// send sends messages in one flush.
func (c *native) send(messages ...[]byte) {
	var flush []byte
	for _, m := range messages {
		flush = append(flush, 0x82, 0x80|126)
		flush = endian.BigEndian.AppendUint16(flush, uint16(len(m)))
		flush = append(flush, 0, 0, 0, 0) // the mask
		flush = append(flush, m...)
	}
	if _, err := c.tls.Write(flush); err != nil {
		c.t.Error(err)
	}
}

func (c *native) expect(want []byte) {
	c.t.Helper()
	if got := c.receive(1)[0]; !bytes.Equal(got, want) {
		c.t.Fatalf("received %x, want %x", got, want)
	}
}

func (c *native) receive(n int) (messages [][]byte) {
	c.t.Helper()
	c.wait()
	for len(messages) < n {
		m, ok := c.frame()
		if !ok {
			c.step()
			continue
		}
		messages = append(messages, m)
	}
	return messages
}

// frame takes the first message out of the buffer, if it is whole.
func (c *native) frame() (message []byte, ok bool) {
	c.t.Helper()
	if len(c.plain) < 4 {
		return nil, false
	}
	start, size := 2, int(c.plain[1])
	if size == 126 {
		start, size = 4, int(endian.BigEndian.Uint16(c.plain[2:]))
	}
	if c.plain[0] != 0x82 || size > 1472 {
		c.t.Fatalf("a frame begins with %x; %d records were dropped", c.plain[:4], c.dropped)
	}
	if len(c.plain) < start+size {
		return nil, false
	}
	message = bytes.Clone(c.plain[start : start+size])
	c.plain = append(c.plain[:0], c.plain[start+size:]...)
	return message, true
}

func (c *native) wait() { _ = c.tcp.SetReadDeadline(time.Now().Add(30 * time.Second)) }

// step takes bytes from TCP and decrypts all whole records, as far as they fit.
func (c *native) step() {
	c.t.Helper()
	var chunk [nativeStep]byte
	n, err := c.tcp.Read(chunk[:])
	if err != nil {
		c.t.Fatalf("%v; %d records were dropped", err, c.dropped)
	}
	c.held = append(c.held, chunk[:n]...)
	for len(c.held) >= 5 {
		size := 5 + int(endian.BigEndian.Uint16(c.held[3:]))
		if len(c.held) < size {
			return
		}
		if size-c.overhead > nativeBuffer-len(c.plain) {
			c.held = nil
			c.dropped++
			return
		}
		c.whole, c.held = c.held[:size], c.held[size:]
		var buf [nativeBuffer]byte
		n, err := c.tls.Read(buf[:])
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // A record without data, such as a ticket, yields the latter.
			c.t.Fatalf("%v; %d records were dropped", err, c.dropped)
		}
		c.plain = append(c.plain, buf[:n]...)
	}
}

// burst is the n messages of a given size that one player relays to another in a
// round.
func burst(from, to proto.AllocationID, round, n int, size func(i int) int) (messages [][]byte) {
	for i := range n {
		payload := bytes.Repeat([]byte{byte(i)}, size(i)-proto.RelayOverhead)
		endian.BigEndian.PutUint32(payload, uint32(round))
		messages = append(messages, proto.Relay{From: from, To: to, Payload: payload}.Append(nil))
	}
	return messages
}

// TestNativeTLS: a native client stays connected by wss while it receives 16
// messages of 1,270 bytes that left its peer in one flush, and bursts of seven
// fragments from four peers at once. All arrive, in order.
func TestNativeTLS(t *testing.T) {
	t.Parallel()
	for version, name := range map[uint16]string{tls.VersionTLS12: "1.2", tls.VersionTLS13: "1.3"} {
		t.Run(name, func(t *testing.T) { testNativeTLS(t, version) })
	}
}

func testNativeTLS(t *testing.T, version uint16) {
	id := newIdentity(t)
	f := newPlace(t).serve("--tls-cert", id.cert, "--tls-key", id.key, "--advertise-name", testName)
	defer f.Stop()
	f.http = id.browse("127.0.0.1")
	playNative(t, f, id, strings.TrimPrefix(f.api, "https://"), version)
}

// playNative plays a match of native clients, whose WebSockets are at addr.
func playNative(t *testing.T, f *ferry, id identity, addr string, version uint16) {
	t.Helper()
	a, code := f.allocate(4)
	host := dialNative(t, id, addr, version, a)
	var players [4]*native
	for i := range players {
		joined := f.join(code)
		players[i] = dialNative(t, id, addr, version, joined)
		players[i].connect(joined)
	}
	tick := time.NewTicker(50 * time.Millisecond) // The relay limits what an allocation sends per second.
	defer tick.Stop()
	start := time.Now()
	for round := 0; round < 10 || time.Since(start) < *nativeDuration; round++ {
		for _, p := range players {
			flush := burst(host.id, p.id, round, 16, func(int) int { return 1270 })
			host.send(flush...)
			for _, want := range flush {
				p.expect(want)
			}
		}
		pending := make(map[proto.AllocationID][][]byte)
		var sending sync.WaitGroup
		for i, p := range players {
			flush := burst(p.id, p.peer, round, 7, func(j int) int { return 1318 + (i*7+j+round)%69 })
			pending[p.id] = flush
			sending.Go(func() { p.send(flush...) })
		}
		sending.Wait()
		for _, got := range host.receive(7 * len(players)) {
			r, err := proto.ParseRelay(got)
			if err != nil || len(pending[r.From]) == 0 || !bytes.Equal(got, pending[r.From][0]) {
				t.Fatalf("round %d: the host received %.60x, %v", round, got, err)
			}
			pending[r.From] = pending[r.From][1:]
		}
		<-tick.C
	}
}
