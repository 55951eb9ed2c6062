package bench

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// TestBinds: one handshake of an endpoint is under way at a time, and times are
// those of its own answer.
func TestBinds(t *testing.T) {
	b := newBinds(0, 10, 1000, 3)
	for want := range 3 {
		if ep, ok := b.takeEndpoint(5); !ok || ep != want {
			t.Fatalf("endpoint %d, %v", ep, ok)
		}
		b.recordSent(want, int64(5+5*want), 20) // 5 is before what counts.
	}
	if ep, ok := b.takeEndpoint(20); ok {
		t.Errorf("endpoint %d is free", ep)
	}
	b.recordAnswer(0, 100)
	b.recordAnswer(1, 10_010)
	b.recordAnswer(1, 10_020) // Nothing is under way any more.
	b.recordAnswer(-1, 10_020)
	b.recordAnswer(3, 10_020)
	if ep, ok := b.takeEndpoint(20_000); !ok || ep != 0 {
		t.Errorf("endpoint %d, %v", ep, ok)
	}
	late := bindTimeout + 100
	for _, want := range []int{1, 2, 0} { // 2 is given up.
		if ep, ok := b.takeEndpoint(late); !ok || ep != want {
			t.Errorf("endpoint %d, %v, want %d", ep, ok, want)
		}
	}
	b.recordAnswer(2, late) // Too late.
	c := b.report(time.Second)
	if c.Sent != 2 || c.Answered != 1 || c.AnsweredRate != 1 || c.Latency.Samples != 1 || c.Latency.Max < 10_000 || c.Latency.Max > 10_100 {
		t.Errorf("%+v", c)
	}
	// The time-out counts from the time of sending, however late.
	b.recordSent(0, 5, late)
	b.cursor = 0
	if ep, ok := b.takeEndpoint(late + 1); !ok || ep != 1 {
		t.Errorf("endpoint %d, %v, want 1", ep, ok)
	}
	if none := newBinds(0, 0, 0, 3); none.pending != nil || none.report(1) != nil {
		t.Error("memory for no BINDs")
	}
}

func TestKeepaliveTimer(t *testing.T) {
	const n, after = 1000, time.Second
	r := &benchrig.Rig{Endpoints: make([]benchrig.Endpoint, n)}
	for i := range r.Endpoints {
		r.Endpoints[i].Relay = netip.MustParseAddrPort("127.0.0.1:1")
		r.Endpoints[i].Keepalive = []byte{1}
	}
	k := newKeepaliveTimer(r, after)
	sentAt := make([][]int64, n)
	begin := sock.Now()
	sender := int32(7)
	for ms := range int64(5000) {
		now := begin + ms*1e6
		k.lastSent[sender] = now
		k.due(now, func(ep int) { sentAt[ep] = append(sentAt[ep], ms) })
	}
	for ep, times := range sentAt {
		if ep == int(sender) {
			if len(times) != 0 {
				t.Errorf("endpoint %d sends data and was kept alive at %v", ep, times)
			}
			continue
		}
		for i := range times {
			if i > 0 && (times[i]-times[i-1] < 1000 || times[i]-times[i-1] > 1200) {
				t.Fatalf("endpoint %d sent at %v ms", ep, times)
			}
		}
		if len(times) < 4 || times[0] > 1200 {
			t.Fatalf("endpoint %d sent at %v ms", ep, times)
		}
	}
	k = newKeepaliveTimer(r, -1)
	k.due(begin+1e12, func(int) { t.Error("kept alive, though switched off") })
}

// maskCipher is a cipher that hides nothing: it turns all bits over and puts a mark in
// front.
type maskCipher struct{}

func (maskCipher) Seal(dst, msg []byte) []byte {
	dst = append(dst, 'm', 'a')
	for _, b := range msg {
		dst = append(dst, ^b)
	}
	return dst
}

func (maskCipher) Open(pkt []byte) []byte {
	if len(pkt) < 2 || pkt[0] != 'm' || pkt[1] != 'a' {
		return nil
	}
	for i := range pkt[2:] {
		pkt[2+i] = ^pkt[2+i]
	}
	return pkt[2:]
}

func (maskCipher) Overhead() int { return 2 }

// maskDialect is Direct with a cipher on the endpoints for which only is true, on all if it is nil.
type maskDialect struct{ only func(ep int) bool }

func (maskDialect) Name() string { return "masked" }

func (m maskDialect) Open(ctx context.Context, p benchrig.Plan) (*benchrig.Rig, error) {
	r, err := benchrig.Direct{Header: 6}.Open(ctx, p)
	if err != nil {
		return nil, err
	}
	for i := range r.Endpoints {
		if m.only == nil || m.only(i) {
			r.Endpoints[i].Cipher = maskCipher{}
		}
	}
	return r, nil
}

// TestCipher: what an endpoint with a cipher sends is encrypted, and what it
// receives must be.
func TestCipher(t *testing.T) {
	for _, c := range []struct {
		name string
		only func(int) bool
		some bool // is anything understood
	}{
		{"both sides", nil, true},
		{"one side", func(ep int) bool { return ep%2 == 0 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, Config{
				Load: Load{Matches: 10, Rate: 2000, Duration: 200 * time.Millisecond, Warmup: -1, Payload: 64},
			}, maskDialect{c.only})
			if r.Sent == 0 || (r.Delivered > 0) != c.some || (r.Corrupt > 0) == c.some || r.Misdelivered > 0 || len(r.Errors) > 0 {
				t.Errorf("delivered %d of %d, %d corrupt, errors %v", r.Delivered, r.Sent, r.Corrupt, r.Errors)
			}
			if want := 6 + 64 + 2; r.WireBytes != want {
				t.Errorf("%d bytes on the wire, want %d", r.WireBytes, want)
			}
		})
	}
}

// TestCipherSetUp: handshakes of a dialect go through the cipher as well.
func TestCipherSetUp(t *testing.T) {
	p := planOf(t, Config{Load: Load{Matches: 1, Rate: 1}})
	r, err := maskDialect{}.Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.SendTo(0, r.Endpoints[1].Addr, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	var got []byte
	err = r.Await(t.Context(), func() bool { return got != nil }, func(time.Time) error { return nil },
		func(ep int, _ netip.AddrPort, pkt []byte) { got = bytes.Clone(pkt) })
	if err != nil || string(got) != "hello" {
		t.Errorf("received %q: %v", got, err)
	}
}
