package dtls

import (
	"fmt"
	"testing"

	pion "github.com/pion/dtls/v3"
)

// TestSizes: no answer to a hello without a cookie is larger than the hello, whatever
// its size; an answer with a cookie is smaller.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		name    string
		plain   bool
		padding int
		suites  int
		hello   int
		answer  int
		direct  bool
	}{
		{"no extensions", true, 0, 1, 67, 44, false},
		{"no extensions, four suites", true, 0, 4, 73, 44, false},
		{"no extensions, five suites", true, 0, 5, 75, 75, true},
		{"one suite", false, 0, 1, 82, 44, false},
		{"two suites", false, 0, 2, 84, 44, false},
		{"three suites", false, 0, 3, 86, 86, true},
		{"padded", false, 4, 1, 86, 86, true},
		{"large", false, 200, 9, 298, 86, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, direct := range []int{0, -1} {
				g := newRig(t, Config{Direct: direct})
				p := newPeer(g, home, 1)
				p.plain, p.padding = c.plain, c.padding
				for i := 1; i < c.suites; i++ {
					p.suites = append(p.suites, uint16(0xC000+i))
				}
				hello := p.hello(nil)
				got := g.put(home, hello)
				if len(hello) != c.hello || len(got) != 1 || len(got[0]) > len(hello) {
					t.Fatalf("%d bytes were answered with %d", len(hello), len(got[0]))
				}
				want, isDirect := c.answer, c.direct && direct == 0
				if !isDirect {
					want = 44
				}
				if len(got[0]) != want || (cookieIn(got[0]) == nil) != isDirect {
					t.Errorf("the answer has %d bytes, want %d", len(got[0]), want)
				}
			}
		})
	}
}

// TestAnswerLen: answerLen is the size of the datagram that is sent.
func TestAnswerLen(t *testing.T) {
	for _, h := range []hello{
		{}, {extendedMaster: true}, {renegotiation: true}, {extendedMaster: true, renegotiation: true},
	} {
		flight := appendServerFlight(nil, &h, &suites[0], 0, make([]byte, randomLen))
		if got := headerLen + len(flight); got != answerLen(&h) {
			t.Errorf("%d bytes, want %d", got, answerLen(&h))
		}
	}
}

// TestPionSizes: the hellos of pion's client have the sizes in the package's
// documentation and are answered directly.
func TestPionSizes(t *testing.T) {
	for _, x := range []struct {
		name  string
		hello int
		opts  []pion.ClientOption
	}{
		{"pion, one suite", 122, nil},
		{"pion, with SNI relay", 136, []pion.ClientOption{pion.WithServerName("relay")}},
	} {
		l := newLoop(t, Config{})
		c := newTap(t, "127.0.0.1:0")
		mustPion(t, c, l, 1, x.opts...)
		sent := c.sent()
		sizes := ""
		for _, b := range sent {
			sizes += fmt.Sprintf(" %d", len(b))
		}
		t.Logf("%s:%s", x.name, sizes)
		if len(sent[0]) != x.hello || l.Stats().Counts[CookieSent] != 0 {
			t.Errorf("a hello of %d bytes was not answered directly", len(sent[0]))
		}
	}
}
