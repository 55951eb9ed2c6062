package turn

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"

	"github.com/pion/stun/v3"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLongTermVector is the sample request with long-term credentials of RFC
// 5769, 2.4.
func TestLongTermVector(t *testing.T) {
	want := unhex(t, "000100602112a44278ad3433c6ad72c029da412e"+
		"00060012e3839ee38388e383aae38383e382afe382b90000"+
		"0015001c662f2f3439396b39353464364f4c33346f4c39465354767936347341"+
		"0014000b6578616d706c652e6f726700"+
		"00080014f67024656dd64a3e02b8e0712e85c9a28ca89666")
	const user, realm = "マトリックス", "example.org"
	b := appendHeader(nil, typeBinding, transaction(want[8:20]))
	b = appendAttr(b, attrUsername, []byte(user))
	b = appendAttr(b, attrNonce, []byte("f//499k954d6OL34oL9FSTvy64sA"))
	b = appendAttr(b, attrRealm, []byte(realm))
	if got := seal(b, longTermKey(user, realm, "TheMatrIX")); !bytes.Equal(got, want) {
		t.Errorf("the request is\n%x, want\n%x", got, want)
	}
	r, err := parse(want)
	if err != nil || r.realm != realm || string(r.nonce) != "f//499k954d6OL34oL9FSTvy64sA" || r.typ != typeBinding {
		t.Errorf("parsed as %+v, %v", r, err)
	}
}

// TestRequestsByPion: an independent parser reads what we build.
func TestRequestsByPion(t *testing.T) {
	peer := netip.MustParseAddrPort("127.1.2.3:40000")
	key := longTermKey("u", "bench", "p")
	id := newTransaction()
	b := appendHeader(nil, typeChannelBind, id)
	b = appendAttr(b, attrChannelNumber, []byte{0x40, 1, 0, 0})
	b = appendAddr(b, attrXORPeerAddress, peer)
	b = appendAttr(b, attrUsername, []byte("u"))
	b = appendAttr(b, attrNonce, []byte("12345"))
	b = appendAttr(b, attrRealm, []byte("bench"))
	b = seal(b, key)
	m := &stun.Message{Raw: b}
	if err := m.Decode(); err != nil {
		t.Fatal(err)
	}
	if m.Type != stun.NewType(stun.MethodChannelBind, stun.ClassRequest) || m.TransactionID != id {
		t.Errorf("the type is %v, the transaction %x", m.Type, m.TransactionID)
	}
	if err := stun.MessageIntegrity(key).Check(m); err != nil {
		t.Error(err)
	}
	var addr stun.XORMappedAddress
	if err := addr.GetFromAs(m, stun.AttrXORPeerAddress); err != nil || addr.String() != peer.String() {
		t.Errorf("the peer is %v (%v), want %v", addr, err, peer)
	}
}

// TestParseReplies: we read what an independent implementation builds.
func TestParseReplies(t *testing.T) {
	relayed := &stun.XORMappedAddress{IP: []byte{127, 0, 0, 1}, Port: 49152}
	ok := stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassSuccessResponse),
		stun.NewSoftware("abc"), setter(func(m *stun.Message) error { return relayed.AddToAs(m, stun.AttrXORRelayedAddress) }))
	r, err := parse(ok.Raw)
	if err != nil || r.typ != typeAllocate|classSuccess || r.method() != typeAllocate || r.code != 0 ||
		r.relayed != netip.MustParseAddrPort("127.0.0.1:49152") || r.id != ok.TransactionID {
		t.Errorf("success is %+v, %v", r, err)
	}
	refused := stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassErrorResponse),
		stun.CodeUnauthorized, stun.NewRealm("bench"), stun.NewNonce("n"))
	r, err = parse(refused.Raw)
	if err != nil || r.typ != typeAllocate|classError || r.code != 401 || r.realm != "bench" || string(r.nonce) != "n" {
		t.Errorf("refusal is %+v, %v", r, err)
	}
	for n := range refused.Raw {
		if _, err := parse(refused.Raw[:n]); !errors.Is(err, errSTUN) {
			t.Errorf("the first %d bytes parse: %v", n, err)
		}
	}
}

type setter func(*stun.Message) error

func (f setter) AddTo(m *stun.Message) error { return f(m) }

// TestParseBroken: nothing of ours is a STUN message by accident.
func TestParseBroken(t *testing.T) {
	for name, in := range map[string]string{
		"empty":              "",
		"channel data":       "400000040000000000000000000000000000000000000000",
		"wrong magic":        "000100002112a44378ad3433c6ad72c029da412e",
		"length beyond end":  "000100042112a44278ad3433c6ad72c029da412e",
		"attribute cut off":  "000100022112a44278ad3433c6ad72c029da412e0006",
		"value beyond end":   "000100042112a44278ad3433c6ad72c029da412e00060004",
		"short error code":   "011300082112a44278ad3433c6ad72c029da412e0009000204010000",
		"relayed is no IPv4": "010300082112a44278ad3433c6ad72c029da412e0016000400020000",
	} {
		if r, err := parse(unhex(t, in)); !errors.Is(err, errSTUN) {
			t.Errorf("%s: parsed as %+v, %v", name, r, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(finish(appendAttr(appendHeader(nil, typeAllocate|classError, transaction{1}), attrErrorCode, []byte{0, 0, 4, 1})))
	f.Add(finish(appendAddr(appendHeader(nil, typeAllocate|classSuccess, transaction{2}), attrXORRelayedAddress,
		netip.MustParseAddrPort("127.0.0.1:1"))))
	f.Fuzz(func(t *testing.T, pkt []byte) {
		r, err := parse(pkt)
		if err == nil && len(pkt) < headerLen || err != nil && r.relayed.IsValid() {
			t.Errorf("%x parses as %+v, %v", pkt, r, err)
		}
	})
}
