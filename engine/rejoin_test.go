package engine

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// rejoinRig is a full host for two, at which "ann" has the first place and another player the
// second, and a new allocation of a player.
type rejoinRig struct {
	*rig
	host, ann, bert, again   *mReservation
	atHost, atAnn, at, atNew endpoint.Endpoint
}

func newRejoinRig(t *testing.T, cfg Config, player string) *rejoinRig {
	t.Helper()
	return newRejoinRigIn(newRig(t, cfg), player)
}

func newRejoinRigIn(in *rig, player string) *rejoinRig {
	r := &rejoinRig{rig: in, atHost: udpN(1), atAnn: udpN(2), at: udpN(3), atNew: udpN(4)}
	r.host = r.rig.host(r.atHost, 2)
	r.ann = r.unlinkedOf("ann", r.atAnn, r.host)
	r.link(r.ann, r.atAnn)
	r.bert = r.joiner(r.at, r.host)
	r.again = r.unlinkedOf(player, r.atNew, r.host)
	return r
}

func (r *rejoinRig) connect() []sending {
	r.t.Helper()
	r.take()
	r.feed(r.atNew, connectMessage(r.again.id, r.again.ticket))
	return r.take()
}

// wantPlace checks that the new allocation got the place of another one: the host learns of
// that before the new one is accepted, and no other client gets a message.
func (r *rejoinRig) wantPlace(old *mReservation, sent []sending) {
	r.t.Helper()
	host, oldID, newID := proto.AllocationID(r.host.id), proto.AllocationID(old.id), proto.AllocationID(r.again.id)
	want := []sending{
		{r.atHost, proto.Disconnect{From: oldID, To: host}.Append(nil)},
		{r.atNew, proto.Accepted{From: host, To: newID}.Append(nil)},
	}
	if !slices.EqualFunc(sent, want, func(a, b sending) bool { return a.to == b.to && bytes.Equal(a.pkt, b.pkt) }) {
		r.t.Fatalf("sent %v, want %v", sent, want)
	}
	if r.entry(old).Handle != 0 || r.entry(r.again).Link != r.entry(r.host).Handle ||
		r.shared.table.Account(r.entry(r.host).Handle).Links != 2 {
		r.t.Fatal("the new allocation has not the place of the old one")
	}
	if n := len(r.ended); n == 0 || r.ended[n-1].ID != oldID || r.ended[n-1].Reason != EndReplaced {
		r.t.Errorf("ended: %+v", r.ended)
	}
}

func (r *rejoinRig) wantRefused(want outcome) {
	r.t.Helper()
	before := r.counted(want)
	sent := r.connect()
	if r.counted(want) != before+1 {
		r.t.Fatalf("the outcome is not %v", want)
	}
	rejected := proto.Rejected{From: proto.AllocationID(r.host.id), To: proto.AllocationID(r.again.id)}.Append(nil)
	switch {
	case want == outRejected && (len(sent) != 1 || sent[0].to != r.atNew || !bytes.Equal(sent[0].pkt, rejected)):
		r.t.Fatalf("sent %v, want REJECTED", sent)
	case want != outRejected && len(sent) != 0:
		r.t.Fatalf("sent %v, want silence", sent)
	}
	if len(r.ended) != 0 || r.entry(r.ann).Link == 0 || r.entry(r.bert).Link == 0 || r.entry(r.again).Link != 0 {
		r.t.Fatal("a link changed")
	}
}

// TestRejoin: a player that crashed has its place back 2 s after its last datagram.
func TestRejoin(t *testing.T) {
	t.Parallel()
	r := newRejoinRig(t, Config{}, "ann")
	for range 3 {
		r.wantRefused(dropPlaceHeld)
		r.advance(time.Second)
		r.feed(r.at, pingMessage(r.bert.id))
		r.feed(r.atHost, relayMessage(r.host.id, r.ann.id, 9)) // What it is sent is no sign of its life.
	}
	r.wantPlace(r.ann, r.connect())
	r.feed(r.atAnn, signed(r.ann, 2, r.ann.key))
	if sent := r.take(); len(sent) != 1 || !bytes.Equal(sent[0].pkt, proto.Error{ID: proto.AllocationID(r.ann.id),
		Code: proto.ErrorNotFound}.Append(nil)) {
		t.Errorf("the old client binds again: %v, want ERROR 4", sent)
	}
}

func TestRejoinAlive(t *testing.T) {
	t.Parallel()
	r := newRejoinRig(t, Config{}, "ann")
	for range 10 {
		r.wantRefused(dropPlaceHeld)
		r.advance(time.Second)
		r.feed(r.atAnn, pingMessage(r.ann.id))
	}
}

// TestRejoinClosed: a page that was reloaded has closed its session, and has its place back at
// once.
func TestRejoinClosed(t *testing.T) {
	t.Parallel()
	r := newRejoinRig(t, Config{}, "ann")
	r.wantRefused(dropPlaceHeld)
	r.closed = map[endpoint.Endpoint]bool{r.atAnn: true}
	r.wantPlace(r.ann, r.connect())
}

func TestRejoinOthers(t *testing.T) {
	t.Parallel()
	r := newRejoinRig(t, Config{}, "carl")
	r.advance(4 * time.Second)
	r.wantRefused(outRejected)

	r = newRejoinRig(t, Config{}, "carl")
	r.many = true // a token that many players share
	r.again = r.unlinkedOf("ann", udpN(5), r.host)
	r.atNew = udpN(5)
	r.advance(4 * time.Second)
	r.wantRefused(outRejected)
}

// TestRejoinShared: the holder of a token that many share keeps its place, whichever player comes.
func TestRejoinShared(t *testing.T) {
	t.Parallel()
	r := &rejoinRig{rig: newRig(t, Config{}), atHost: udpN(1), atAnn: udpN(2), at: udpN(3), atNew: udpN(4)}
	r.host = r.rig.host(r.atHost, 2)
	r.many = true
	r.ann = r.unlinkedOf("token", r.atAnn, r.host)
	r.link(r.ann, r.atAnn)
	r.bert = r.unlinkedOf("token", r.at, r.host)
	r.link(r.bert, r.at)
	r.many = false
	r.again = r.unlinkedOf("token", r.atNew, r.host)
	r.advance(4 * time.Second)
	r.wantRefused(outRejected)
}

// TestRejoinLongestSilent: of several links of one player, that of a closed session yields, else
// the one that was silent for longest.
func TestRejoinLongestSilent(t *testing.T) {
	t.Parallel()
	two := func() *rejoinRig {
		r := &rejoinRig{rig: newRig(t, Config{}), atHost: udpN(1), atAnn: udpN(2), at: udpN(3), atNew: udpN(4)}
		r.host = r.rig.host(r.atHost, 2)
		r.ann = r.unlinkedOf("ann", r.atAnn, r.host)
		r.link(r.ann, r.atAnn)
		r.bert = r.unlinkedOf("ann", r.at, r.host)
		r.link(r.bert, r.at)
		r.again = r.unlinkedOf("ann", r.atNew, r.host)
		r.advance(time.Second)
		r.feed(r.atAnn, pingMessage(r.ann.id))
		r.advance(3 * time.Second)
		return r
	}
	r := two()
	r.wantPlace(r.bert, r.connect())
	r = two()
	r.closed = map[endpoint.Endpoint]bool{r.atAnn: true}
	r.wantPlace(r.ann, r.connect())
}

// TestRejoinStall: time in which the relay stood still is no silence of a player.
func TestRejoinStall(t *testing.T) {
	t.Parallel()
	r := newRejoinRig(t, Config{}, "ann")
	r.now += 5000
	r.pump()
	r.wantRefused(dropPlaceHeld)
	r.advance(3 * time.Second)
	r.wantPlace(r.ann, r.connect())
}

func TestRejoinCrowd(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	at := func(port int) endpoint.Endpoint { return udp(fmt.Sprint("192.0.2.1:", 2000+port)) }
	host := r.host(at(0), 100)
	var first []*mReservation
	for i := range 100 {
		card := r.unlinkedOf(string(rune('A'+i)), at(1+i), host)
		r.advance(50 * time.Millisecond) // 20 new links a second
		r.link(card, at(1+i))
		first = append(first, card)
		r.feed(at(1+i), pingMessage(card.id))
	}
	for i, card := range first {
		r.feed(at(1+i), pingMessage(card.id))
	}
	r.advance(2500 * time.Millisecond)
	for i := range 90 {
		card := r.unlinkedOf(string(rune('A'+i)), at(200+i), host)
		r.advance(50 * time.Millisecond)
		r.link(card, at(200+i))
		if r.entry(first[i]).Handle != 0 {
			t.Fatalf("player %d has two places", i)
		}
	}
	for i, card := range first[90:] {
		if r.entry(card).Link == 0 {
			t.Errorf("player %d has lost its place", 90+i)
		}
	}
}

// TestRejoinRecovery: after a restart no link yields until the window is over, and what was
// replaced does not come back after the next one.
func TestRejoinRecovery(t *testing.T) {
	t.Parallel()
	in := newRig(t, Config{Recovery: Recovery{Window: time.Minute}})
	in.restart(false) // From here on there is a state file.
	in.advance(61 * time.Second)
	r := newRejoinRigIn(in, "ann")
	r.restart(true)
	back := func(cards ...*mReservation) {
		for _, c := range cards {
			at := map[*mReservation]endpoint.Endpoint{r.host: r.atHost, r.ann: r.atAnn, r.bert: r.at, r.again: r.atNew}[c]
			r.bind(c, at, 5)
			if c != r.host && c != r.again {
				r.feed(r.atHost, relayMessage(r.host.id, c.id, 1))
			}
		}
	}
	back(r.host, r.ann, r.bert, r.again)
	r.advance(4 * time.Second)
	r.wantRefused(dropRecovering)
	for range 60 {
		r.advance(time.Second)
		r.feed(r.at, pingMessage(r.bert.id))
		r.feed(r.atNew, pingMessage(r.again.id))
		r.feed(r.atHost, relayMessage(r.host.id, r.bert.id, 1))
		r.feed(r.atAnn, relayMessage(r.ann.id, r.host.id, 1))
	}
	r.advance(3 * time.Second)
	r.wantPlace(r.ann, r.connect())
	r.restart(true)
	if o := r.feed(r.atAnn, signed(r.ann, 9, r.ann.key)); o != outcomePending || r.entry(r.ann).Handle != 0 {
		t.Errorf("the replaced allocation came back: %v", o)
	}
	if sent := r.take(); len(sent) != 1 || sent[0].pkt[3] != byte(proto.TypeError) {
		t.Errorf("sent %v, want ERROR 4", sent)
	}
}

// TestRejoinFlood: a player that repeats CONNECT_REQUEST makes control look at a host's links
// once a second, three times at once.
func TestRejoinFlood(t *testing.T) {
	t.Parallel()
	r := newRejoinRig(t, Config{}, "carl")
	rejected := r.counted(outRejected)
	for range 1000 {
		r.connect()
	}
	if n := r.counted(outRejected) - rejected; n != 3 || r.counted(dropRate) != 997 {
		t.Errorf("%d were answered, %d dropped, want 3 and 997", n, r.counted(dropRate))
	}
}
