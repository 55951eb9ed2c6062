package lab

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/proto"
	"github.com/pion/dtls/v3/pkg/protocol/handshake"
	"github.com/pion/dtls/v3/pkg/protocol/recordlayer"
)

// TestMessages verifies that Messages returns a well-formed message of every
// type that clients send.
func TestMessages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	types := map[proto.Type]bool{}
	for _, m := range Messages(rng) {
		if _, err := proto.Decode(m); err != nil {
			t.Errorf("%x: %v", m, err)
		}
		kind, _ := proto.ParseType(m)
		types[kind] = kind.FromClient()
	}
	if len(types) != 6 || types[proto.TypeBindReceived] {
		t.Errorf("types %v", types)
	}
}

// TestMalformed verifies that nearly all datagrams of Malformed are malformed;
// a random type or length can produce a valid one.
func TestMalformed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	good := 0
	for range 5000 {
		if _, err := proto.Decode(Malformed(rng)); err == nil {
			good++
		}
	}
	if good > 250 {
		t.Errorf("%d of 5,000 are well-formed", good)
	}
}

// TestRandomSource verifies that forged sources are in AttackerReplyRange and
// that no player's address is.
func TestRandomSource(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for range 10_000 {
		if s := RandomSource(rng); !AttackerReplyRange().Contains(s.Addr()) || s.Port() < 1024 {
			t.Fatal(s)
		}
	}
}

// TestChecksums checks the header of RFC 1071's common worked example, and that
// the words of every packet with its checksums add up to ffff.
func TestChecksums(t *testing.T) {
	header := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	if got := ^fold(sum(header)); got != 0xb861 {
		t.Errorf("checksum %04x, want b861", got)
	}
	from, to := netip.MustParseAddrPort("198.18.1.2:3456"), netip.MustParseAddrPort("203.0.113.77:7777")
	for n := range 64 {
		payload := bytes.Repeat([]byte{0xDA}, n)
		p := AppendIPv4UDP(nil, from, to, payload)
		check := func() {
			t.Helper()
			udp := p[ipHeaderLen:]
			if fold(sum(p[:ipHeaderLen])) != 0xffff || fold(sum(p[12:20])+protocolUDP+uint64(len(udp))+sum(udp)) != 0xffff {
				t.Errorf("%d bytes: checksums are wrong: %x", n, p)
			}
		}
		check()
		if !bytes.Equal(p[rawOverhead:], payload) || int(binary.BigEndian.Uint16(p[2:])) != len(p) ||
			int(binary.BigEndian.Uint16(p[24:])) != n+8 {
			t.Errorf("%d bytes: packet %x", n, p)
		}
		SetSource(p, netip.MustParseAddrPort("198.19.255.254:65535"))
		check()
	}
}

func TestClientHello(t *testing.T) {
	random := HelloRandom(rand.New(rand.NewPCG(7, 7)))
	b := ClientHello(random)
	if all, err := recordlayer.UnpackDatagram(b); err != nil || len(all) != 1 {
		t.Fatalf("%d records: %v", len(all), err)
	}
	var hello handshake.MessageClientHello
	if err := hello.Unmarshal(b[dtlsHeaders:]); err != nil {
		t.Fatal(err)
	}
	if got := hello.Random.MarshalFixed(); got != random || len(hello.Cookie) != 0 || len(hello.CipherSuiteIDs) != 2 {
		t.Errorf("pion reads %+v", hello)
	}
}
