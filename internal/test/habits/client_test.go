package habits

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

type testClient struct {
	Client
	now  time.Duration
	sent [][]byte
}

var (
	ownID  = [16]byte{15: 1}
	hostID = [16]byte{15: 2}
)

func newTestClient(kind Kind, joiner bool) *testClient {
	c := &testClient{now: time.Hour}
	cred := Credentials{ID: ownID, Key: make([]byte, 64), ConnectionData: make([]byte, 255)}
	if joiner {
		cred.Ticket = make([]byte, 255)
	}
	c.Client = New(kind, cred, func(pkt []byte) { c.sent = append(c.sent, bytes.Clone(pkt)) })
	c.Heard(c.now)
	return c
}

// after advances the clock, runs a frame, and returns the types of what was sent since
// the last call; a BIND as its nonce plus 100.
func (c *testClient) after(d time.Duration) (types []int) {
	c.now += d
	c.Update(c.now)
	for _, m := range c.sent {
		if m[3] == 0 {
			types = append(types, 100+int(m[5])+int(m[6])<<8)
		} else {
			types = append(types, int(m[3]))
		}
	}
	c.sent = nil
	return types
}

func (c *testClient) get(t byte, ids ...[16]byte) {
	pkt := []byte{0xDA, 0x72, 0, t}
	for _, id := range ids {
		pkt = append(pkt, id[:]...)
	}
	c.Handle(c.now, pkt)
}

func (c *testClient) getError(code byte) {
	c.Handle(c.now, append(append([]byte{0xDA, 0x72, 0, 12}, ownID[:]...), code))
}

// TestBinding verifies when each kind binds, and with which nonce.
func TestBinding(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{UTP1(), UTP20(), UTP27()} {
		t.Run(kind.Name, func(t *testing.T) {
			c := newTestClient(kind, false)
			next := func(n int) []int { // the n-th nonce
				if !kind.RaisesNonce {
					n = 0
				}
				return []int{100 + n}
			}
			if got := c.after(0); !slices.Equal(got, next(0)) {
				t.Errorf("at first %v", got)
			}
			if got := c.after(time.Second); got != nil {
				t.Errorf("too early: %v", got)
			}
			if got := c.after(1); !slices.Equal(got, next(1)) {
				t.Errorf("after a second %v", got)
			}
			c.get(1)
			c.getError(3)
			if got := c.after(0); kind.RaisesNonce && !slices.Equal(got, next(3)) || !kind.RaisesNonce && got != nil {
				t.Errorf("after ERROR 3: %v", got)
			}
			nonce := c.Nonce
			if got := c.after(9*time.Second + 1); !slices.Equal(got, []int{2, 100 + int(nonce)}) || c.Nonce != nonce {
				t.Errorf("after nine silent seconds %v, nonce %d, want %d", got, c.Nonce, nonce)
			}
			c = newTestClient(kind, false)
			for range 70 {
				c.after(time.Second + 1)
			}
			if failed := c.Status == Failed; failed != (kind.MaxBinds > 0) || c.Binds < 60 {
				t.Errorf("after %d unanswered BINDs its status is %d", c.Binds, c.Status)
			}
		})
	}
}

// TestEnd verifies which messages end the game of each kind.
func TestEnd(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{UTP1(), UTP27()} {
		for code := range byte(8) {
			c := newTestClient(kind, false)
			c.get(1)
			c.getError(code)
			if got := c.Status == Failed; got != (code == 1 || code == 4) {
				t.Errorf("%s: ERROR %d ends it: %v", kind.Name, code, got)
			}
		}
		c := newTestClient(kind, true)
		c.get(1)
		c.get(8, hostID, ownID)
		if got := c.Status == Failed; got != kind.TakesClosing {
			t.Errorf("%s: REJECTED ends it: %v", kind.Name, got)
		}
		c = newTestClient(kind, true)
		c.get(1)
		if got := c.after(0); !slices.Equal(got, []int{2, 3}) {
			t.Errorf("%s: a joiner that is bound sends %v", kind.Name, got)
		}
		if got := c.after(time.Second); !slices.Equal(got, []int{3}) {
			t.Errorf("%s: and then %v", kind.Name, got)
		}
		c.get(6, hostID, ownID)
		c.get(9, hostID, ownID)
		if got := c.Left; got != kind.TakesClosing || len(c.Peers) != map[bool]int{true: 0, false: 1}[got] {
			t.Errorf("%s: DISCONNECT closes it: %v, %d peers", kind.Name, got, len(c.Peers))
		}
	}
}

// TestClosing verifies the messages of both sides when a host shuts down, and that the
// player does not connect again.
func TestClosing(t *testing.T) {
	t.Parallel()
	for _, disposed := range []bool{false, true} {
		host, joiner := newTestClient(UTP27(), false), newTestClient(UTP27(), true)
		host.Cred.ID = hostID
		for _, c := range []*testClient{host, joiner} {
			c.get(1)
		}
		joiner.get(6, hostID, ownID)
		joiner.Relay(joiner.now, hostID, []byte("hello"))
		host.Handle(host.now, joiner.sent[len(joiner.sent)-1])
		if !slices.Equal(host.Peers, [][16]byte{ownID}) {
			t.Fatalf("the host has peers %v", host.Peers)
		}
		host.sent, joiner.sent = nil, nil
		host.Leave(host.now, ownID, disposed)
		joiner.Handle(joiner.now, host.sent[0])
		want := []int{10, 9}
		if disposed {
			want = want[:1]
		}
		if got := host.after(0); !slices.Equal(got, want) {
			t.Errorf("the host, disposed %v, sends %v", disposed, got)
		}
		if got := joiner.after(0); !slices.Equal(got, []int{9}) || !joiner.Left {
			t.Errorf("the player sends %v", got)
		}
		if got := joiner.after(2 * time.Second); got != nil {
			t.Errorf("and after 2 s %v", got)
		}
		joiner.Connect()
		if got := joiner.after(0); !slices.Equal(got, []int{3}) {
			t.Errorf("another driver sends %v", got)
		}
	}
}

// TestMalformed verifies what no relay sends.
func TestMalformed(t *testing.T) {
	t.Parallel()
	good := append([]byte{0xDA, 0x72, 0, 9}, make([]byte, 32)...)
	if why := Malformed(good); why != "" {
		t.Errorf("a DISCONNECT: %s", why)
	}
	relay := append(append([]byte{0xDA, 0x72, 0, 10}, make([]byte, 32)...), 0, 2, 1, 1)
	if why := Malformed(relay); why != "" {
		t.Errorf("a RELAY: %s", why)
	}
	for _, bad := range [][]byte{nil, {0xDA, 0x72, 1, 1}, good[:35], relay[:39], relay[:37], {0xDA, 0x72, 0, 0}, {0xDA, 0x72, 0, 3},
		{0xDA, 0x72, 0, 200}} {
		if Malformed(bad) == "" {
			t.Errorf("%x is taken", bad)
		}
	}
}
