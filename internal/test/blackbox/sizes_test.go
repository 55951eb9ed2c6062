package blackbox

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
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

func connectSecured(t *testing.T, f *ferry, host *enginetest.UTP, a allocation) *sizedPlayer {
	t.Helper()
	return linked(t, f, host, a, a.secure(t, newSocket(t, "127.0.0.1:0")))
}

func linked(t *testing.T, f *ferry, host *enginetest.UTP, a allocation, c *wiretest.Conn) *sizedPlayer {
	t.Helper()
	c.Bind(a.credentials(t), 0)
	c.Ask(connectRequest(a), wiretest.HasType(proto.TypeAccepted))
	return &sizedPlayer{t, f, host, a, c.Got}
}

// connectWebSocket returns a player by WebSocket with a link to the host, which
// ends its connection as a native client does, at more than 1,386 bytes.
func connectWebSocket(t *testing.T, f *ferry, host *enginetest.UTP, a allocation) *sizedPlayer {
	t.Helper()
	conn, _, err := ws.Dial(t.Context(), "ws"+strings.TrimPrefix(f.api, "http")+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1386)
	return linked(t, f, host, a, wiretest.WebSocket(t, conn))
}

func connectRequest(a allocation) []byte {
	return proto.ConnectRequest{ID: proto.AllocationID(a.AllocationIDBytes), ConnectionData: a.HostConnectionData}.Append(nil)
}

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

func (p *sizedPlayer) large(id string) (dropped, forwarded float64) {
	p.t.Helper()
	_, page := p.f.ask("GET", p.f.admin+"/allocations/"+id, "")
	var a struct {
		ReceiverSizeDrops *float64 `json:"receiver_size_drops"`
		LargeMessages     *float64 `json:"large_messages"`
	}
	if err := json.Unmarshal(page, &a); err != nil || a.ReceiverSizeDrops == nil || a.LargeMessages == nil {
		p.t.Fatalf("%s: %v", page, err)
	}
	return *a.ReceiverSizeDrops, *a.LargeMessages
}

// why returns why the relay says that an allocation does not play, or that it does.
func (f *ferry) why(id string) string {
	f.t.Helper()
	_, page := f.ask("GET", f.admin+"/why/"+id, "")
	var y struct{ Because string }
	if err := json.Unmarshal(page, &y); err != nil || y.Because == "" {
		f.t.Fatalf("%s: %v", page, err)
	}
	return y.Because
}

// TestMessageSizes: a host on UDP with the default size of messages, and players
// by ways that carry less. What no client there takes is dropped, what only some of them
// take is forwarded; both are counted for the player, named by `ferry ctl why`, and logged
// once per match with the cure.
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
		for line := range strings.Lines(f.Log.String()) {
			if strings.Contains(line, "receiver_transport=") && strings.Contains(line, "match="+match) {
				found = append(found, line)
			}
		}
		return found
	}

	host, a, joined := start()
	p := connectSecured(t, f, host, joined)
	p.receives(1363)
	if dropped, forwarded := p.large(joined.AllocationID); dropped != 0 || forwarded != 0 {
		t.Errorf("%v dropped, %v forwarded that may be too large", dropped, forwarded)
	}
	if why := f.why(joined.AllocationID); strings.Contains(why, "large") {
		t.Error(why)
	}
	p.receives(1364, 1363) // UTP 1.5.0 takes them all, UTP 2.x none of these by default.
	p.receives(1400, 1364)
	p.receives(1401, 1400)
	p.receives(1438, 1401)
	dropped, forwarded := p.large(joined.AllocationID)
	if n, m := p.large(a.AllocationID); dropped != 0 || forwarded < 4 || n != 0 || m != 0 {
		t.Errorf("to the player %v dropped, %v forwarded, to the host %v and %v", dropped, forwarded, n, m)
	}
	for _, want := range []string{"it plays", " messages to it may be too large for its client", "maxMessageSize 1363 on udp"} {
		if why := f.why(joined.AllocationID); !strings.Contains(why, want) {
			t.Errorf("%q is not in: %s", want, why)
		}
	}
	if why := f.why(a.AllocationID); strings.Contains(why, "large") {
		t.Error(why)
	}

	webHost, webMatch, joined := start()
	p = connectWebSocket(t, f, webHost, joined)
	p.receives(1386)
	for range 3 {
		p.isDropped(1387)
	}
	p.receives(100, 1386)
	testkit.Eventually(t, "the second match is logged", func() bool { return len(lines(webMatch.AllocationID)) > 0 })
	n, m := p.large(joined.AllocationID)
	if n < 3 || m != 0 {
		t.Errorf("%v messages to the second player were dropped, %v forwarded that may be too large", n, m)
	}
	if why := f.why(joined.AllocationID); !strings.Contains(why, "messages to it were dropped, larger than its transport carries") {
		t.Error(why)
	}
	testkit.Eventually(t, "the counts agree", func() bool { return f.metric(receiverSize) == dropped+n })

	for match, want := range map[string]string{
		a.AllocationID:        "sender_transport=udp receiver_transport=dtls size=1364 limit=1363 dropped=false",
		webMatch.AllocationID: "sender_transport=udp receiver_transport=ws size=1387 limit=1386 dropped=true",
	} {
		all := lines(match)
		if len(all) != 1 || !strings.Contains(all[0], "level=WARN") || !strings.Contains(all[0], want) ||
			!strings.Contains(all[0], "maxMessageSize: 1363") {
			t.Errorf("%d lines:\n%s\nwant one with %s", len(all), strings.Join(all, ""), want)
		}
	}
	if strings.Count(f.Log.String(), "receiver_transport=") != 2 {
		t.Errorf("more lines than matches:\n%s", f.Log.String())
	}
}
