package netcode_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

func messages(c netcode.Conn) (all []string) {
	for b := range c.Messages() {
		all = append(all, string(b))
	}
	return all
}

// TestMessages: unreliable messages pass in both directions without a tick and outside of the game.
func TestMessages(t *testing.T) {
	b, s, c := pair(t, netcode.Config{}, netcode.Config{})
	for _, way := range [][2]netcode.Conn{{s, c}, {c, s}} {
		largest := bytes.Repeat([]byte{7}, 1389)
		for _, v := range [][]byte{[]byte("one"), nil, largest} {
			if err := way[0].SendMessage(v); err != nil {
				t.Fatal(err)
			}
		}
		if err := way[0].SendMessage(make([]byte, 1390)); err != netcode.ErrTooLarge {
			t.Errorf("1390 bytes: %v", err)
		}
		b.flush()
		b.update()
		if got := messages(way[1]); !slices.Equal(got, []string{"one", "", string(largest)}) {
			t.Errorf("got %q", got)
		}
		b.flush()
		b.update()
		if got := messages(way[1]); got != nil {
			t.Errorf("the next tick has %q", got)
		}
		sent, _ := way[0].Stats()
		received, _ := way[1].Stats()
		if sent.MessagesSent != 3 || received.MessagesReceived != 3 || received.Ignored != 0 {
			t.Errorf("%+v, %+v", sent, received)
		}
	}
	if err := c.SendMessage([]byte("the last one")); err != nil {
		t.Fatal(err)
	}
	c.Disconnect(netcode.ReasonConnectionClose, "")
	b.tick(1)
	b.update()
	if got := messages(s); len(got) != 1 || s.State() != netcode.StateDisconnected {
		t.Errorf("with the end of the connection came %q", got)
	}
	if err := s.SendMessage(nil); err != netcode.ErrGone {
		t.Errorf("after the end: %v", err)
	}
}

// TestMessagesBeforeConnected: none is sent, and one of a peer that sends it all the same is ignored.
func TestMessagesBeforeConnected(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true})
	r := newRawPeer(t, b)
	s := b.only()
	if err := s.SendMessage(nil); err != netcode.ErrNotAllowed {
		t.Errorf("in handshake: %v", err)
	}
	r.say(t, b, utp.EntitiesUnreliable, []byte{3, 'x'})
	b.update()
	if st, _ := s.Stats(); messages(s) != nil || st.Ignored != 1 {
		t.Errorf("%q, %+v", messages(s), st)
	}
}

// TestMessagesFillTheQueue: the send queue of the transport bounds them.
func TestMessagesFillTheQueue(t *testing.T) {
	for connections, queue := range map[int]int{0: 4096, 4000: 16_000, 65536: 65536} {
		_, _, c := pair(t, netcode.Config{}, netcode.Config{MaxConnections: connections})
		n := 0
		for ; n <= queue && c.SendMessage(nil) == nil; n++ {
		}
		if err := c.SendMessage(nil); err != netcode.ErrQueueFull || n < queue/2 || n > queue {
			t.Errorf("%d connections: after %d messages in a queue of %d: %v", connections, n, queue, err)
		}
	}
}

// TestMessagesAreBounded: a peer that sends far too many costs a bounded part of an Update.
func TestMessagesAreBounded(t *testing.T) {
	b, s, c := pair(t, netcode.Config{}, netcode.Config{})
	for range 300 {
		if err := c.SendMessage(nil); err != nil {
			t.Fatal(err)
		}
	}
	b.flush()
	b.update()
	if st, _ := s.Stats(); len(messages(s)) != 256 || st.Dropped != 44 {
		t.Errorf("%d messages, %+v", len(messages(s)), st)
	}
}

// TestMessagesOverLoss: what arrives is whole, and messages do not wait for lost ones.
func TestMessagesOverLoss(t *testing.T) {
	b, _, s, c := overNet(t, netcode.Config{}, link.Conditions{Delay: 30 * ms, Jitter: 20 * ms, Loss: 10, Duplicate: 5, Reorder: 5})
	const sent = 500
	got := map[string]bool{}
	for i := range sent {
		if err := c.SendMessage([]byte{byte(i), byte(i >> 8)}); err != nil {
			t.Fatal(err)
		}
		b.tick(1)
		for _, v := range messages(s) {
			if len(v) != 2 {
				t.Fatalf("got %q", v)
			}
			got[v] = true
		}
	}
	if n := len(got); n < sent*80/100 || n > sent*97/100 {
		t.Errorf("%d of %d messages arrived, of which 10 %% were lost", n, sent)
	}
}
