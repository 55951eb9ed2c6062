package bench

import (
	"bytes"
	"encoding/hex"
	"testing"
)

var goldenStamp = stamp{run: 0x01020304, flow: 5, seq: 0x10002, due: 0x1122334455667788}

const goldenStampHex = "fe221b3c0102030400000005000100021122334455667788"

func TestStamp(t *testing.T) {
	b := make([]byte, stampLen+3)
	goldenStamp.put(b)
	if got := hex.EncodeToString(b[:stampLen]); got != goldenStampHex {
		t.Errorf("put %s, want %s", got, goldenStampHex)
	}
	if got, ok := parseStamp(b); !ok || got != goldenStamp {
		t.Errorf("parsed %+v, %v", got, ok)
	}
	for n := range stampLen {
		if _, ok := parseStamp(b[:n]); ok {
			t.Errorf("%d bytes are taken for a stamp", n)
		}
	}
	b[0] ^= 1
	if _, ok := parseStamp(b); ok {
		t.Error("another magic is taken for a stamp")
	}
}

func FuzzStamp(f *testing.F) {
	b := make([]byte, stampLen)
	goldenStamp.put(b)
	f.Add(b)
	f.Add(b[:stampLen-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := parseStamp(b)
		if !ok {
			return
		}
		again := make([]byte, stampLen)
		s.put(again)
		if !bytes.Equal(again, b[:stampLen]) {
			t.Errorf("%x became %x", b, again)
		}
	})
}
