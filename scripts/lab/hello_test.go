package lab

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/pion/dtls/v3/pkg/protocol/handshake"
	"github.com/pion/dtls/v3/pkg/protocol/recordlayer"
)

// TestClientHello: pion reads in a hello what was put there.
func TestClientHello(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, cookie := range [][]byte{nil, bytes.Repeat([]byte{5}, 16)} {
		random := Random(rng)
		b := ClientHello(random, cookie)
		if all, err := recordlayer.UnpackDatagram(b); err != nil || len(all) != 1 {
			t.Fatalf("%d records: %v", len(all), err)
		}
		var hello handshake.MessageClientHello
		if err := hello.Unmarshal(b[dtlsHeaders:]); err != nil {
			t.Fatal(err)
		}
		if got := hello.Random.MarshalFixed(); got != random || !bytes.Equal(hello.Cookie, cookie) || len(hello.CipherSuiteIDs) != 2 {
			t.Errorf("pion reads %+v", hello)
		}
	}
}

// TestCookieIn: the cookie of a HelloVerifyRequest is found, and in nothing else.
func TestCookieIn(t *testing.T) {
	cookie := bytes.Repeat([]byte{9}, 16)
	verify := plainRecord(0, append([]byte{verifyRequest, 0, 0, 19, 0, 0, 0, 0, 0, 0, 0, 19, 0xFE, 0xFF, 16}, cookie...))
	if got := CookieIn(verify); !bytes.Equal(got, cookie) {
		t.Errorf("found % x", got)
	}
	for n := range verify {
		if CookieIn(verify[:n]) != nil {
			t.Errorf("found in %d bytes", n)
		}
	}
	if CookieIn(ClientHello([dtlsRandomLen]byte{}, cookie)) != nil {
		t.Error("found in a ClientHello")
	}
}
