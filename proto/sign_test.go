package proto

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"testing"
)

// standardMAC is what crypto/hmac says.
func standardMAC(msg []byte, key *Key) []byte {
	mac := hmac.New(sha256.New, key[:])
	mac.Write(msg)
	return mac.Sum(nil)
}

// TestSignerStandard compares one Signer, used for everything, with
// crypto/hmac over all sizes of connection data and another key each time.
func TestSignerStandard(t *testing.T) {
	rng := newRand(8)
	var signer Signer
	for n := range MaxConnectionData + 1 {
		key := randomKey(rng)
		bind := Bind{AcceptMode: uint8(n), Nonce: uint16(rng.Uint32()), ConnectionData: randomBytes(rng, n)}
		pkt := signer.Append(nil, bind, key)
		signed := pkt[:len(pkt)-MACLen]
		if want := standardMAC(signed, key); !bytes.Equal(pkt[len(signed):], want) {
			t.Fatalf("%d bytes of data: MAC %x, want %x", n, pkt[len(signed):], want)
		}
		if !signer.Verify(pkt, key) {
			t.Fatalf("%d bytes of data: its own MAC does not verify", n)
		}
		back, err := ParseBind(pkt)
		if err != nil {
			t.Fatal(err)
		}
		bind.MAC = back.MAC
		if want := bind.Append(nil); !bytes.Equal(pkt, want) {
			t.Fatalf("%d bytes of data: signed\n%x, plain\n%x", n, pkt, want)
		}
	}
}

// TestSignerAppend checks that what is before dst's end is neither changed nor
// signed, and that the MAC in the struct is ignored.
func TestSignerAppend(t *testing.T) {
	rng := newRand(9)
	key := randomKey(rng)
	bind := Bind{Nonce: 1, ConnectionData: randomBytes(rng, MaxConnectionData)}
	var signer Signer
	plain := signer.Append(nil, bind, key)

	bind.MAC = [MACLen]byte(randomBytes(rng, MACLen))
	if again := signer.Append(nil, bind, key); !bytes.Equal(again, plain) {
		t.Error("the MAC in the struct went into the result")
	}
	behind := signer.Append([]byte("before"), bind, key)
	if string(behind[:6]) != "before" || !bytes.Equal(behind[6:], plain) {
		t.Error("what was in dst went into the result")
	}
}

// TestVerifyBits flips each bit of a valid BIND.
func TestVerifyBits(t *testing.T) {
	rng := newRand(10)
	key := randomKey(rng)
	var signer Signer
	pkt := signer.Append(nil, Bind{ConnectionData: randomBytes(rng, MaxConnectionData)}, key)
	for bit := range len(pkt) * 8 {
		pkt[bit/8] ^= 1 << (bit % 8)
		if signer.Verify(pkt, key) {
			t.Errorf("verified with bit %d of byte %d flipped", bit%8, bit/8)
		}
		pkt[bit/8] ^= 1 << (bit % 8)
	}
	if !signer.Verify(pkt, key) {
		t.Error("the packet without a flipped bit does not verify")
	}
}

// TestVerifyKeyBits flips each bit of the key.
func TestVerifyKeyBits(t *testing.T) {
	rng := newRand(11)
	key := randomKey(rng)
	var signer Signer
	pkt := signer.Append(nil, Bind{ConnectionData: randomBytes(rng, 8)}, key)
	for bit := range KeyLen * 8 {
		key[bit/8] ^= 1 << (bit % 8)
		if signer.Verify(pkt, key) {
			t.Errorf("verified with bit %d of byte %d of the key flipped", bit%8, bit/8)
		}
		key[bit/8] ^= 1 << (bit % 8)
	}
	if !signer.Verify(pkt, key) {
		t.Error("the right key does not verify")
	}
}

// TestVerifyOtherSizes gives Verify what ParseBind would have refused. A MAC
// that is right for a size that no BIND can have is no excuse.
func TestVerifyOtherSizes(t *testing.T) {
	rng := newRand(12)
	key := randomKey(rng)
	var signer Signer
	for n := range BindOverhead {
		pkt := randomBytes(rng, n)
		if n >= MACLen {
			copy(pkt[n-MACLen:], standardMAC(pkt[:n-MACLen], key))
		}
		if signer.Verify(pkt, key) {
			t.Errorf("verified %d bytes", n)
		}
	}
	if signer.Verify(nil, key) {
		t.Error("verified nothing")
	}
	pkt := signer.Append(nil, Bind{ConnectionData: randomBytes(rng, 16)}, key)
	for n := range len(pkt) {
		if signer.Verify(pkt[:n], key) {
			t.Errorf("verified the first %d of %d bytes", n, len(pkt))
		}
	}
	if signer.Verify(append(pkt, 0), key) {
		t.Error("verified with a byte more")
	}
}

// TestSignerLeavesNothing makes sure that neither arguments nor the memory of
// the Signer change in a way that the caller would notice.
func TestSignerLeavesNothing(t *testing.T) {
	rng := newRand(13)
	key := randomKey(rng)
	keyBefore := *key
	var signer Signer
	pkt := signer.Append(nil, Bind{ConnectionData: randomBytes(rng, 100)}, key)
	before := bytes.Clone(pkt)
	signer.Verify(pkt, key)
	if *key != keyBefore {
		t.Error("the key was changed")
	}
	if !bytes.Equal(pkt, before) {
		t.Error("the packet was changed")
	}
	if signer.pad != [sha256.BlockSize]byte{} {
		t.Error("the key stayed in the pad")
	}
}

// FuzzSigner compares with crypto/hmac.
func FuzzSigner(f *testing.F) {
	rng := newRand(14)
	f.Add(randomBytes(rng, KeyLen), uint16(0), []byte(nil))
	f.Add(randomBytes(rng, KeyLen), uint16(1), randomBytes(rng, MaxConnectionData))
	f.Add(goldenHostKey[:], uint16(0x0100), goldenHostData)
	f.Fuzz(func(t *testing.T, keyBytes []byte, nonce uint16, data []byte) {
		var key Key
		copy(key[:], keyBytes)
		var signer Signer
		pkt := signer.Append(nil, Bind{Nonce: nonce, ConnectionData: data[:min(len(data), MaxConnectionData)]}, &key)
		end := len(pkt) - MACLen
		if want := standardMAC(pkt[:end], &key); !bytes.Equal(pkt[end:], want) {
			t.Fatalf("MAC %x, want %x", pkt[end:], want)
		}
		if m, err := ParseBind(pkt); err != nil || m.Nonce != nonce || !signer.Verify(pkt, &key) {
			t.Fatalf("%v, %v", m, err)
		}
	})
}
