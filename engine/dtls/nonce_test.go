package dtls

import (
	"encoding/binary"
	"sync"
	"testing"
)

// TestNonces: no two records of a direction have the same explicit nonce, whichever
// goroutine seals them, and the nonce is the epoch and sequence number. With AES-GCM
// a repeated nonce reveals the plain text and the key of the tags.
func TestNonces(t *testing.T) {
	const routines, each = 4, 500
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	serial := checkEcho(t, p, testID(1)).Serial
	var mu sync.Mutex
	nonces := make(map[uint64]bool)
	var wg sync.WaitGroup
	for range routines {
		wg.Go(func() {
			for range each {
				b, _, ok := g.Seal(nil, serial, []byte("x"))
				nonce := binary.BigEndian.Uint64(b[headerLen:])
				mu.Lock()
				if !ok || nonces[nonce] || nonce != binary.BigEndian.Uint64(b[3:]) || nonce>>seqBits != epoch1 {
					t.Errorf("nonce %x in % x, was there before: %v", nonce, b, nonces[nonce])
				}
				nonces[nonce] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// TestSequenceEnds: when the numbers of a session are used up nothing more is
// sealed, and the number does not wrap around.
func TestSequenceEnds(t *testing.T) {
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	serial := checkEcho(t, p, testID(1)).Serial
	s := g.table.serial(serial)
	s.sent.Store(1<<seqBits - 1)
	b, _, ok := g.Seal(nil, serial, []byte("the last"))
	if !ok || p.open(b) != "the last" {
		t.Fatal("the last number was not used")
	}
	for range 3 {
		if b, _, ok := g.Seal([]byte("kept"), serial, []byte("x")); ok || string(b) != "kept" {
			t.Fatalf("sealed beyond the last number: % x", b)
		}
	}
}

// TestFreshKeys: the server random of each handshake is unique, so that keys differ
// even if a client repeats all of its messages.
func TestFreshKeys(t *testing.T) {
	seen := make(map[string]bool)
	for _, direct := range []int{0, -1} {
		g := newRig(t, Config{Direct: direct})
		for i := range 20 {
			from := home
			from.Lo += uint64(i)
			p := newPeer(g, from, 1)
			p.random = [randomLen]byte{1}
			mustConnect(t, p)
			salts := string(p.keys.in.salt[:]) + string(p.keys.out.salt[:])
			random := string(p.flight[messageHeaderLen+2 : messageHeaderLen+2+randomLen])
			if seen[random] || seen[salts] || random == string(make([]byte, randomLen)) {
				t.Fatalf("handshake %d: the random % x or the keys came before", i, random)
			}
			seen[random], seen[salts] = true, true
		}
	}
}

// TestDirections: the two directions have different keys, so our own record is not
// accepted as one of the client.
func TestDirections(t *testing.T) {
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	s := checkEcho(t, p, testID(1))
	for range 50 {
		b, _, _ := g.Seal(nil, s.Serial, []byte("down"))
		if _, msg := g.Open(home, b); msg != nil {
			t.Fatal("our own record was accepted")
		}
	}
	g.wantCounts(map[Event]uint64{DropUndecryptable: 50, DropReplayed: 0})
}
