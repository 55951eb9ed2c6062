package blackbox

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/enginetest"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

const receiverSize = `ferry_drops_total{reason="receiver_size"}`

// sizedPlayer is a player by DTLS or WebSocket whose host is on UDP.
type sizedPlayer struct {
	t        *testing.T
	f        *ferry
	host     *enginetest.UTP
	a        allocation
	received <-chan []byte
}

// connectSecured returns a player by DTLS with a link to the host.
func connectSecured(t *testing.T, f *ferry, host *enginetest.UTP, a allocation) *sizedPlayer {
	t.Helper()
	s := a.secure(t, "127.0.0.1:0")
	s.bind(a.credentials(t), 0)
	s.ask(connectRequest(a), isAccepted)
	return &sizedPlayer{t, f, host, a, s.got}
}

// connectWebSocket returns a player by WebSocket with a link to the host, which
// ends its connection as a native client does, at more than 1,386 bytes.
func connectWebSocket(t *testing.T, f *ferry, host *enginetest.UTP, a allocation) *sizedPlayer {
	t.Helper()
	conn, _, err := ws.Dial(t.Context(), "ws"+strings.TrimPrefix(f.api, "http")+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(1386)
	received := make(chan []byte, 64)
	go func() {
		defer close(received)
		for {
			_, m, err := conn.Read(context.Background())
			if err != nil {
				return // The test is over, or the message was too large.
			}
			received <- m
		}
	}()
	p := &sizedPlayer{t, f, host, a, received}
	for _, step := range []struct {
		send []byte
		want func([]byte) bool
	}{
		{enginetest.SignedBind(a.credentials(t), 0), equals(proto.BindReceived{}.Append(nil))},
		{connectRequest(a), isAccepted},
	} {
		if err := conn.Write(t.Context(), ws.MessageBinary, step.send); err != nil {
			t.Fatal(err)
		}
		if m := <-received; !step.want(m) {
			t.Fatalf("received % x", m)
		}
	}
	return p
}

func connectRequest(a allocation) []byte {
	return proto.ConnectRequest{ID: proto.AllocationID(a.AllocationIDBytes), ConnectionData: a.HostConnectionData}.Append(nil)
}

func isAccepted(m []byte) bool {
	_, err := proto.ParseAccepted(m)
	return err == nil
}

// send lets the host send a message of size bytes to the player.
func (p *sizedPlayer) send(size int) {
	p.host.Send([16]byte(p.a.AllocationIDBytes), strings.Repeat("x", size-proto.RelayOverhead))
}

// receives lets the host send a message until it arrives, and fails when one
// whose size is not among passed does.
func (p *sizedPlayer) receives(size int, passed ...int) {
	p.t.Helper()
	for range 100 {
		p.send(size)
		for timer := time.After(200 * time.Millisecond); ; {
			select {
			case m, open := <-p.received:
				if !open {
					p.t.Fatal("the connection has ended")
				}
				if kind, _ := proto.ParseType(m); kind != proto.TypeRelay {
					continue // A BIND or CONNECT_REQUEST was answered twice.
				}
				if len(m) == size {
					return
				}
				if !slices.Contains(passed, len(m)) {
					p.t.Fatalf("a message of %d bytes arrived", len(m))
				}
				continue
			case <-timer:
			}
			break
		}
	}
	p.t.Fatalf("no message of %d bytes arrived", size)
}

// isDropped lets the host send a message until the relay counts one more.
func (p *sizedPlayer) isDropped(size int) {
	p.t.Helper()
	before := p.f.metric(receiverSize)
	testkit.Eventually(p.t, "the message is dropped and counted", func() bool {
		p.send(size)
		return p.f.metric(receiverSize) > before
	})
}

// drops returns how many messages to the player the relay says it dropped.
func (p *sizedPlayer) drops(id string) (n float64) {
	p.t.Helper()
	_, page := p.f.ask("GET", p.f.admin+"/allocations/"+id, "")
	var a struct {
		ReceiverSizeDrops *float64 `json:"receiver_size_drops"`
	}
	if err := json.Unmarshal(page, &a); err != nil || a.ReceiverSizeDrops == nil {
		p.t.Fatalf("%s: %v", page, err)
	}
	return *a.ReceiverSizeDrops
}

// TestMessageSizes: a host on UDP with the default size of messages, and players
// by ways that carry less. What a player's client would not take is dropped,
// counted for that player, and logged once per match with the cure.
func TestMessageSizes(t *testing.T) {
	t.Parallel()
	f := dev(t)
	start := func() (*enginetest.UTP, allocation, allocation) {
		a, code := f.allocate(4)
		host := play(t, enginetest.UTP2, a)
		testkit.Eventually(t, "host is bound", host.HasStatus(enginetest.Established))
		return host, a, f.join(code)
	}
	lines := func(match string) (found []string) {
		for line := range strings.Lines(f.log.String()) {
			if strings.Contains(line, "too large for its receiver") && strings.Contains(line, "match="+match) {
				found = append(found, line)
			}
		}
		return found
	}

	host, a, joined := start()
	p := connectSecured(t, f, host, joined)
	p.receives(1363)
	p.receives(1400, 1363)
	for _, size := range []int{1401, 1438, 1401} {
		p.isDropped(size)
	}
	p.receives(100, 1363, 1400)
	dropped := p.drops(joined.AllocationID)
	if n := p.drops(a.AllocationID); dropped < 3 || n != 0 {
		t.Errorf("%v messages to the player were dropped, %v to the host", dropped, n)
	}

	webHost, webMatch, joined := start()
	p = connectWebSocket(t, f, webHost, joined)
	p.receives(1386)
	for range 3 {
		p.isDropped(1387)
	}
	p.receives(100, 1386)
	testkit.Eventually(t, "the second match is logged", func() bool { return len(lines(webMatch.AllocationID)) > 0 })
	n := p.drops(joined.AllocationID)
	if n < 3 {
		t.Errorf("%v messages to the second player were dropped", n)
	}
	testkit.Eventually(t, "the counts agree", func() bool { return f.metric(receiverSize) == dropped+n })

	for match, want := range map[string]string{
		a.AllocationID:        "sender_way=udp receiver_way=dtls size=1400 limit=1363 dropped=false",
		webMatch.AllocationID: "sender_way=udp receiver_way=ws size=1387 limit=1386 dropped=true",
	} {
		all := lines(match)
		if len(all) != 1 || !strings.Contains(all[0], "level=WARN") || !strings.Contains(all[0], want) ||
			!strings.Contains(all[0], "maxMessageSize: 1363") {
			t.Errorf("%d lines:\n%s\nwant one with %s", len(all), strings.Join(all, ""), want)
		}
	}
	if strings.Count(f.log.String(), "too large for its receiver") != 2 {
		t.Errorf("more lines than matches:\n%s", f.log.String())
	}
}
