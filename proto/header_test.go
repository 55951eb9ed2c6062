package proto

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParseType(t *testing.T) {
	for _, c := range []struct {
		pkt  []byte
		kind Type
		err  error
	}{
		{nil, 0, ErrShort},
		{[]byte{}, 0, ErrShort},
		{[]byte{0xDA}, 0, ErrShort},
		{[]byte{0xDA, 0x72, 0}, 0, ErrShort},
		{[]byte{1, 2, 3}, 0, ErrShort},
		{[]byte{0xDA, 0x72, 0, 0}, TypeBind, nil},
		{[]byte{0xDA, 0x72, 0, 10}, TypeRelay, nil},
		{[]byte{0xDA, 0x72, 0, 10, 1, 2, 3}, TypeRelay, nil},
		{[]byte{0xDA, 0x72, 0, 4}, 4, nil},
		{[]byte{0xDA, 0x72, 0, 255}, 255, nil},
		{[]byte{0xDA, 0x72, 1, 10}, TypeRelay, ErrVersion},
		{[]byte{0xDA, 0x72, 255, 255}, 255, ErrVersion},
		{[]byte{0xDA, 0x71, 0, 10}, 0, ErrSignature},
		{[]byte{0x72, 0xDA, 0, 10}, 0, ErrSignature},
		{[]byte{0xDB, 0x72, 1, 10}, 0, ErrSignature},
		{[]byte{0x59, 0, 12, 'Q', 'o', 'S'}, 0, ErrSignature},
		{[]byte{22, 0xFE, 0xFD, 0, 0}, 0, ErrSignature},
	} {
		if kind, err := ParseType(c.pkt); kind != c.kind || err != c.err {
			t.Errorf("%x: %v, %v; want %v, %v", c.pkt, kind, err, c.kind, c.err)
		}
	}
}

func TestTypes(t *testing.T) {
	table := map[uint8]struct {
		kind       Type
		name       string
		fromClient bool
	}{
		0:  {TypeBind, "BIND", true},
		1:  {TypeBindReceived, "BIND_RECEIVED", false},
		2:  {TypePing, "PING", true},
		3:  {TypeConnectRequest, "CONNECT_REQUEST", true},
		6:  {TypeAccepted, "ACCEPTED", false},
		8:  {TypeRejected, "REJECTED", false},
		9:  {TypeDisconnect, "DISCONNECT", true},
		10: {TypeRelay, "RELAY", true},
		11: {TypeClose, "CLOSE", true},
		12: {TypeError, "ERROR", false},
	}
	for n := range 256 {
		kind := Type(n)
		want, known := table[uint8(n)]
		if !known {
			if kind.FromClient() || kind.FromServer() {
				t.Errorf("%v is sent by an end", kind)
			}
			if name := fmt.Sprintf("TYPE(%d)", n); kind.String() != name {
				t.Errorf("%s, want %s", kind, name)
			}
			continue
		}
		if kind != want.kind || kind.String() != want.name {
			t.Errorf("type %d is %v, want %v, %s", n, kind, want.kind, want.name)
		}
		if kind.FromClient() != want.fromClient || kind.FromServer() == want.fromClient {
			t.Errorf("%v: from client %v, from server %v", kind, kind.FromClient(), kind.FromServer())
		}
	}
	if len(table) != len(allTypes) || len(parsers) != len(allTypes) {
		t.Errorf("%d types in the table, %d in the tests, %d parsers", len(table), len(allTypes), len(parsers))
	}
}

func TestErrorCodes(t *testing.T) {
	codes := []ErrorCode{ErrorVersion, ErrorTimeout, ErrorUnauthorized, ErrorMismatch, ErrorNotFound, ErrorNotConnected, ErrorSelfConnect}
	seen := make(map[string]bool)
	for n, code := range codes {
		if int(code) != n {
			t.Errorf("%v is %d, want %d", code, code, n)
		}
		text := code.String()
		if seen[text] || strings.HasPrefix(text, "code ") {
			t.Errorf("code %d has no name of its own: %s", n, text)
		}
		seen[text] = true
	}
	for n := len(codes); n < 256; n++ {
		if want := fmt.Sprintf("code %d", n); ErrorCode(n).String() != want {
			t.Errorf("%s, want %s", ErrorCode(n), want)
		}
	}
}

// TestErrorsAreDistinct: callers compare errors with ==.
func TestErrorsAreDistinct(t *testing.T) {
	sentinels := []error{ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength}
	for i, a := range sentinels {
		if !strings.HasPrefix(a.Error(), "proto: ") {
			t.Errorf("%q does not name the package", a)
		}
		for _, b := range sentinels[i+1:] {
			if errors.Is(a, b) || a.Error() == b.Error() {
				t.Errorf("%v and %v are equal", a, b)
			}
		}
	}
}
