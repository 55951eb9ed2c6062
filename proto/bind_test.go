package proto

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// testKey returns a key whose bytes are recognizable in every notation: 171, ab, AB,
// 0o253, 10101011.
func testKey() Key {
	return Key(bytes.Repeat([]byte{0xAB}, keyLen))
}

// checkRedacted fails if text contains the bytes of testKey in any notation, or does
// not contain "[redacted]".
func checkRedacted(t *testing.T, what, text string) {
	t.Helper()
	for _, trace := range []string{"171", "ab", "AB", "253", "10101011", "q6ur", "\xab", "«"} {
		if strings.Contains(text, trace) {
			t.Errorf("%s shows the key: %s", what, text)
			return
		}
	}
	if !strings.Contains(text, redacted) {
		t.Errorf("%s is %q, without %s", what, text, redacted)
	}
}

func TestKeyRedactedVerbs(t *testing.T) {
	key := testKey()
	type holder struct {
		Name string
		K    Key
	}
	values := map[string]any{
		"Key":     key,
		"*Key":    &key,
		"struct":  holder{"name", key},
		"*struct": &holder{"name", key},
		"slice":   []Key{key},
		"map":     map[string]Key{"name": key},
		"map key": map[Key]int{key: 1},
	}
	verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%#x", "%d", "%o", "%b", "%c", "%U", "%t", "%e",
		"%100v", "%-100x", "%.3s"}
	for name, value := range values {
		for _, verb := range verbs {
			checkRedacted(t, verb+" of "+name, fmt.Sprintf(verb, value))
		}
		checkRedacted(t, "Sprint of "+name, fmt.Sprint(value))
		checkRedacted(t, "Sprintln of "+name, fmt.Sprintln(value))
	}
}

// TestKeyInUnexportedField: a *Key in an unexported field prints as an address.
func TestKeyInUnexportedField(t *testing.T) {
	key := testKey()
	for _, verb := range []string{"%v", "%+v", "%#v", "%d"} {
		text := fmt.Sprintf(verb, struct{ key *Key }{&key})
		if strings.Contains(text, "171 171") || strings.Contains(text, "0xab, 0xab") {
			t.Errorf("%s shows the key: %s", verb, text)
		}
	}
}

func TestKeyRedactedText(t *testing.T) {
	key := testKey()
	text, err := key.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{
		"MarshalText": string(text),
		"an error":    errors.Join(fmt.Errorf("bind with %v", key)).Error(),
	} {
		checkRedacted(t, name, got)
	}
}

func TestKeyRedactedLogs(t *testing.T) {
	key := testKey()
	type holder struct{ K Key }
	options := &slog.HandlerOptions{ReplaceAttr: withoutTime}
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, options) },
		"JSON": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, options) },
	} {
		for what, value := range map[string]any{
			"Key": key, "*Key": &key, "struct": holder{key}, "*struct": &holder{key}, "slice": []Key{key},
			"group": slog.GroupValue(slog.Any("key", key)),
		} {
			var out bytes.Buffer
			log := slog.New(handler(&out))
			log.Info("bound", "value", value)
			checkRedacted(t, "slog "+name+" of "+what, out.String())
		}
	}
}

// withoutTime removes the time, whose digits could look like bytes of the key.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

func TestKeyRedactedJSON(t *testing.T) {
	key := testKey()
	for name, value := range map[string]any{
		"Key": key, "*Key": &key, "struct": struct{ K Key }{key}, "slice": []Key{key}, "map key": map[Key]int{key: 1},
	} {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		checkRedacted(t, "JSON of "+name, string(text))
	}
}

func TestKeyBytes(t *testing.T) {
	key := testKey()
	if !bytes.Equal(key[:], bytes.Repeat([]byte{0xAB}, 64)) {
		t.Error("key[:] differs from the bytes of the key")
	}
}

func standardMAC(msg []byte, key *Key) []byte {
	mac := hmac.New(sha256.New, key[:])
	mac.Write(msg)
	return mac.Sum(nil)
}

// TestSignerStandard compares a reused Signer with crypto/hmac over all sizes of
// connection data, with another key each time.
func TestSignerStandard(t *testing.T) {
	rng := newRand(8)
	var signer Signer
	for n := range MaxConnectionData + 1 {
		key := randomKey(rng)
		bind := Bind{AcceptMode: uint8(n), Nonce: uint16(rng.Uint32()), ConnectionData: randomBytes(rng, n)}
		pkt := signer.Append(nil, bind, key)
		signed := pkt[:len(pkt)-macLen]
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

// TestSignerAppend: the bytes of dst are neither changed nor signed, and the MAC in
// the struct is ignored.
func TestSignerAppend(t *testing.T) {
	rng := newRand(9)
	key := randomKey(rng)
	bind := Bind{Nonce: 1, ConnectionData: randomBytes(rng, MaxConnectionData)}
	var signer Signer
	plain := signer.Append(nil, bind, key)

	bind.MAC = [macLen]byte(randomBytes(rng, macLen))
	if again := signer.Append(nil, bind, key); !bytes.Equal(again, plain) {
		t.Error("the MAC in the struct changed the result")
	}
	behind := signer.Append([]byte("before"), bind, key)
	if string(behind[:6]) != "before" || !bytes.Equal(behind[6:], plain) {
		t.Error("the bytes of dst changed the result")
	}
}

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

func TestVerifyKeyBits(t *testing.T) {
	rng := newRand(11)
	key := randomKey(rng)
	var signer Signer
	pkt := signer.Append(nil, Bind{ConnectionData: randomBytes(rng, 8)}, key)
	for bit := range keyLen * 8 {
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

// TestVerifyOtherSizes: Verify rejects datagrams of a size that no BIND has, even with
// a correct MAC.
func TestVerifyOtherSizes(t *testing.T) {
	rng := newRand(12)
	key := randomKey(rng)
	var signer Signer
	for n := range bindOverhead {
		pkt := randomBytes(rng, n)
		if n >= macLen {
			copy(pkt[n-macLen:], standardMAC(pkt[:n-macLen], key))
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

func TestSignerClearsKey(t *testing.T) {
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
		t.Error("the pad still holds the key")
	}
}

func FuzzSigner(f *testing.F) {
	rng := newRand(14)
	f.Add(randomBytes(rng, keyLen), uint16(0), []byte(nil))
	f.Add(randomBytes(rng, keyLen), uint16(1), randomBytes(rng, MaxConnectionData))
	f.Add(goldenHostKey[:], uint16(0x0100), goldenHostData)
	f.Fuzz(func(t *testing.T, keyBytes []byte, nonce uint16, data []byte) {
		var key Key
		copy(key[:], keyBytes)
		var signer Signer
		pkt := signer.Append(nil, Bind{Nonce: nonce, ConnectionData: data[:min(len(data), MaxConnectionData)]}, &key)
		end := len(pkt) - macLen
		if want := standardMAC(pkt[:end], &key); !bytes.Equal(pkt[end:], want) {
			t.Fatalf("MAC %x, want %x", pkt[end:], want)
		}
		if m, err := ParseBind(pkt); err != nil || m.Nonce != nonce || !signer.Verify(pkt, &key) {
			t.Fatalf("%v, %v", m, err)
		}
	})
}
