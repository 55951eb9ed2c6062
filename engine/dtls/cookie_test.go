package dtls

import (
	"bytes"
	"testing"
	"time"
)

// TestCookie: a cookie is valid for its source and its hello, for two time slots.
func TestCookie(t *testing.T) {
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	p.hello(nil)
	h, ok := parseHello(p.first[messageHeaderLen:])
	if !ok {
		t.Fatal("no hello")
	}
	c, other := newCookies(), newCookies()
	now := time.Now()
	cookie := bytes.Clone(c.make(home, &h, now))
	p.hello(cookie)
	with, ok := parseHello(p.first[messageHeaderLen:])
	if !ok {
		t.Fatal("no hello with a cookie")
	}
	for _, x := range []struct {
		name string
		by   *cookies
		from string
		at   time.Duration
		want bool
	}{
		{"at once", &c, "192.0.2.1:4000", 0, true},
		{"in the next slot", &c, "192.0.2.1:4000", cookieSlot, true},
		{"later", &c, "192.0.2.1:4000", 2 * cookieSlot, false},
		{"another port", &c, "192.0.2.1:4001", 0, false},
		{"another address", &c, "192.0.2.2:4000", 0, false},
		{"another process", &other, "192.0.2.1:4000", 0, false},
	} {
		if got := x.by.valid(at(x.from), &with, now.Add(x.at)); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
	p.random[3] ^= 1
	p.hello(cookie)
	if with, _ = parseHello(p.first[messageHeaderLen:]); c.valid(home, &with, now) {
		t.Error("valid for another hello")
	}
}

// TestInvalidCookie: it is answered with a new one, as RFC 6347 4.2.1 requires.
func TestInvalidCookie(t *testing.T) {
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	got := g.put(home, p.hello(make([]byte, cookieLen)))
	if len(got) != 1 || cookieIn(got[0]) == nil {
		t.Fatalf("answered % x", got)
	}
	p.seq++
	if !p.answered(g.put(home, p.hello(cookieIn(got[0])))) {
		t.Fatal("the new cookie is not valid")
	}
	g.wantCounts(map[Event]uint64{DropCookie: 1, CookieSent: 1, Answered: 1})
}
