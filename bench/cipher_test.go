package bench

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// mask is a cipher that hides nothing: it turns all bits over and puts a mark in
// front.
type mask struct{}

func (mask) Seal(dst, msg []byte) []byte {
	dst = append(dst, 'm', 'a')
	for _, b := range msg {
		dst = append(dst, ^b)
	}
	return dst
}

func (mask) Open(pkt []byte) []byte {
	if len(pkt) < 2 || pkt[0] != 'm' || pkt[1] != 'a' {
		return nil
	}
	for i := range pkt[2:] {
		pkt[2+i] = ^pkt[2+i]
	}
	return pkt[2:]
}

func (mask) Overhead() int { return 2 }

// masked is Direct with a cipher on all ways; only says whose, nil all.
type masked struct{ only func(ep int) bool }

func (masked) Name() string { return "masked" }

func (m masked) Open(ctx context.Context, p benchrig.Plan) (*benchrig.Rig, error) {
	r, err := benchrig.Direct{Header: 6}.Open(ctx, p)
	if err != nil {
		return nil, err
	}
	for i := range r.Endpoints {
		if m.only == nil || m.only(i) {
			r.Endpoints[i].Cipher = mask{}
		}
	}
	return r, nil
}

// TestCipher: what an endpoint with a cipher sends is encrypted, and what it
// hears must be.
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
			r, err := Run(t.Context(), Config{
				Matches: 10, Rate: 2000, Duration: 200 * time.Millisecond, Warmup: -1, Payload: 64,
			}, masked{c.only})
			if err != nil {
				t.Fatal(err)
			}
			if r.Sent == 0 || (r.Delivered > 0) != c.some || r.Corrupt+r.Misdelivered > 0 || (len(r.Errors) > 0) == c.some {
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
	p := planOf(t, Config{Matches: 1, Rate: 1})
	r, err := masked{}.Open(t.Context(), p)
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
		t.Errorf("heard %q: %v", got, err)
	}
}
