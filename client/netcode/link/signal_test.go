package link

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"net/netip"
	"testing"
)

// FuzzSignal: what is parsed is written in the same bytes.
func FuzzSignal(f *testing.F) {
	o := offer{flags: offerReply, id: 7, key: [16]byte{1, 2}, count: 2}
	o.addrs[0] = netip.MustParseAddrPort("192.0.2.1:7")
	o.addrs[1] = netip.MustParseAddrPort("[2001:db8::1]:8")
	f.Add(o.appendTo(nil))
	mac := hmac.New(sha256.New, o.key[:])
	for _, p := range []probe{{signalChallenge, 0, 1, 2}, {signalResponse, responseAccepted, 1, 2}} {
		f.Add(p.appendTo(nil, mac, nil, make([]byte, 32)))
	}
	f.Add([]byte(signalMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o offer
		if o.parse(b) {
			mapped := false
			for _, ap := range o.addrs[:o.count] {
				mapped = mapped || ap.Addr().Is4In6()
			}
			if got := o.appendTo(nil); mapped || len(got) > maxOffer || len(got) == len(b) && !bytes.Equal(got, b) {
				t.Fatalf("%x is written as %x", b, got)
			}
		}
		var p probe
		if p.parse(b) {
			if o.parse(b) {
				t.Fatal("an offer and a probe")
			}
			got := p.appendTo(nil, mac, nil, make([]byte, 32))
			if !bytes.Equal(got[:probeSize-macSize], b[:probeSize-macSize]) {
				t.Fatalf("%x is written as %x", b, got)
			}
		}
	})
}
