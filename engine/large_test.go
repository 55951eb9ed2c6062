package engine

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// TestLargeReportRetried: while the ring is full, a large message is dropped and
// its report is lost; the next one is reported, and then none of the match.
func TestLargeReportRetried(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	s.joiner1AtIPv6()
	w := s.workers[workerOf(atHost)]
	send := func(content int, want Outcome) {
		t.Helper()
		if o := w.handleDatagram(s.now, endpointAt(atHost), relayMessage(s.hostData().id, s.joiner1().id, content), false); o != want {
			t.Fatalf("%v, want %v", o, want)
		}
	}
	w.inbox.unlimited = true
	for o := outcomePending; o == outcomePending; {
		_, o = w.inbox.push(known, &command{kind: proto.TypeClose})
	}
	send(mMaxMessage, DropReceiverSize)
	for w.inbox.rings[known].size() > 0 {
		s.control.runOnce(s.now)
	}
	if len(s.reports) != 0 {
		t.Fatalf("reported %+v", s.reports)
	}
	send(mSafeMessage-38, OutRelayed)
	send(mSafeMessage-38+1, OutRelayed)
	for range 5 {
		send(mMaxMessage, DropReceiverSize)
		s.control.runOnce(s.now)
	}
	want := []mReport{{s.hostData().id, s.hostData().id, s.joiner1().id, mSafeMessage + 1, mSafeMessage, false}}
	if !slices.Equal(s.reports, want) {
		t.Errorf("reported %+v, want %+v", s.reports, want)
	}
}

// TestLargeNotCharged: what is dropped for its size takes nothing of the
// sender's quota.
func TestLargeNotCharged(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	s.joiner1AtIPv6()
	for range 2 * mHostQuota[0] {
		s.datagram(atHost, relayMessage(s.hostData().id, s.joiner1().id, mMaxMessage))
	}
	s.datagram(atHost, relayMessage(s.hostData().id, s.joiner1().id, 1))
	s.settle()
	s.compare()
	if got := s.totals(); s.err != nil || got[DropReceiverSize] != uint64(2*mHostQuota[0]) || got[OutRelayed] != 1 {
		t.Errorf("dropped %d, relayed %d, %v", got[DropReceiverSize], got[OutRelayed], s.err)
	}
}

// TestLargeToTransport: a server asks its transports what they carry, counts what
// is larger at its receiver, and tells of it once.
func TestLargeToTransport(t *testing.T) {
	p := newPipe()
	reports := make(chan LargeMessageEvent, 8)
	s, err := New(Config{
		Workers: 1, Transports: []Transport{p}, Records: &fakeRecords{},
		Hooks: Hooks{OnLargeMessage: func(e LargeMessageEvent) { reports <- e }},
	}, testSealer(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	in := <-p.in
	host, err := s.ReserveHost(ctx, alloc.HostRequest{MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := s.ReserveJoiner(ctx, alloc.JoinerRequest{Host: host.ID})
	if err != nil {
		t.Fatal(err)
	}
	udp := newAsker(t, s)
	in.Deliver(1, bindOf(host))
	p.next(t, 1)
	udp.ask(bindOf(joiner))
	udp.ask(proto.ConnectRequest{ID: joiner.ID, ConnectionData: joiner.HostConnectionData[:]}.Append(nil))
	for _, size := range []int{pipeMessage + 1, pipeMessage + 2, pipeMessage} {
		udp.conn.Write(relayMessage(mID(joiner.ID), mID(host.ID), size-38))
	}
	if got := p.next(t, 1); len(got) != pipeMessage {
		t.Errorf("the host got %d bytes", len(got))
	}
	for id, want := range map[proto.AllocationID]uint32{host.ID: 2, joiner.ID: 0} {
		page, _, err := s.Allocations(ctx, Filter{ID: id}, 0, 1)
		if err != nil || len(page) != 1 || page[0].LargeDrops != want {
			t.Errorf("%v: want %d large messages dropped, %v", page, want, err)
		}
	}
	want := LargeMessageEvent{
		Match: host.ID, From: joiner.ID, To: host.ID, FromKind: endpoint.KindUDP4, ToKind: endpoint.KindWS,
		Size: pipeMessage + 1, Limit: pipeMessage, Dropped: true,
	}
	select {
	case got := <-reports:
		if got != want {
			t.Errorf("reported %+v, want %+v", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Error("no report within 20 s")
	}
	cancel()
	if err := <-ended; err != nil || len(reports) != 0 {
		t.Errorf("%v, %d more reports", err, len(reports))
	}
	m := s.shared.rules.messages
	if m.safe[endpoint.KindDTLS] != 1363 || m.most[endpoint.KindDTLS] != 1400 || m.safe[endpoint.KindUDP6] < 1<<16 {
		t.Errorf("%+v", m)
	}
}
