package client

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestBindRepeatsWithTheSameNonceAndThenMovesOn(t *testing.T) {
	t.Parallel()
	s := idle(t, Config{Ticket: hostTicket(nowhere), RetryPeriod: 400 * time.Millisecond})
	beginBind(s, 0)
	var at []int64
	var sent []uint16
	for now := int64(0); now <= ms(2000); now += ms(50) {
		if n := nonces(drain(t, s, now)); len(n) > 0 {
			at, sent = append(at, now), append(sent, n...)
		}
	}
	if want := []int64{0, ms(100), ms(300), ms(700), ms(1100), ms(1500), ms(1900)}; !slices.Equal(at, want) {
		t.Errorf("sent at %v, want %v", at, want)
	}
	if want := []uint16{0, 0, 0, 0, 1, 1, 1}; !slices.Equal(sent, want) {
		t.Errorf("nonces %v, want %v", sent, want)
	}
}

func TestBindIsSigned(t *testing.T) {
	t.Parallel()
	s := idle(t, Config{Ticket: hostTicket(nowhere), FirstNonce: 7})
	beginBind(s, 0)
	pkt, _ := s.due(0, nil)
	b, err := proto.ParseBind(pkt)
	if err != nil || b.Nonce != 7 || b.AcceptMode != 0 || !slices.Equal(b.ConnectionData, s.cfg.Ticket.ConnectionData) {
		t.Fatalf("BIND is %v, %v", b, err)
	}
	var signer proto.Signer
	if !signer.Verify(pkt, &s.cfg.Ticket.Key) {
		t.Error("MAC is wrong")
	}
}

func TestBindGivesUp(t *testing.T) {
	t.Parallel()
	s := idle(t, Config{Ticket: hostTicket(nowhere)})
	beginBind(s, 0)
	drain(t, s, ms(9999))
	if err := s.Err(); err != nil {
		t.Fatalf("ended early: %v", err)
	}
	drain(t, s, ms(10000))
	if err := s.Err(); err != ErrBindTimeout {
		t.Fatalf("ended with %v", err)
	}
}

func TestRebindGivesUpLater(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	drain(t, s, ms(3000))
	drain(t, s, ms(62999))
	if err := s.Err(); err != nil {
		t.Fatalf("ended early: %v", err)
	}
	drain(t, s, ms(63000))
	if err := s.Err(); err != ErrBindTimeout {
		t.Fatalf("ended with %v", err)
	}
}

func TestSilenceBindsAgainWithAGreaterNonce(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	feed(s, ms(500), proto.Ping{ID: hostID, Number: 1})
	if n := nonces(drain(t, s, ms(3499))); n != nil {
		t.Fatalf("binds with %v before three periods", n)
	}
	if n := nonces(drain(t, s, ms(3500))); !slices.Equal(n, []uint16{1}) {
		t.Fatalf("binds with %v", n)
	}
	if got := drain(t, s, ms(3600)); got != nil {
		t.Errorf("sends %v while it binds", got)
	}
	feed(s, ms(3700), proto.BindReceived{})
	got := drain(t, s, ms(3700))
	if len(got) != 1 || nonces(got) != nil {
		t.Errorf("sends %v after it is bound, want a PING", got)
	}
	if st := s.Stats(); !st.Bound || st.Nonce != 1 || st.Rebinds != 1 {
		t.Errorf("stats are %+v", st)
	}
}

func TestErrorMismatchStorm(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	mismatch := proto.Error{ID: hostID, Code: proto.ErrorMismatch}
	var sent []uint16
	for now := ms(50); now < ms(450); now += ms(1) {
		feed(s, now, mismatch)
		sent = append(sent, nonces(drain(t, s, now))...)
	}
	// BIND went out at 0, so the next ones are due at 100, 200, 300 and 400.
	if want := []uint16{1, 2, 3, 4}; !slices.Equal(sent, want) {
		t.Errorf("nonces %v, want %v", sent, want)
	}
	if st := s.Stats(); st.Errors[proto.ErrorMismatch] != 400 {
		t.Errorf("counted %d", st.Errors[proto.ErrorMismatch])
	}
}

func TestErrorMismatchBeforeBindIsNothing(t *testing.T) {
	t.Parallel()
	s := idle(t, Config{Ticket: hostTicket(nowhere)})
	feed(s, ms(1000), proto.Error{ID: hostID, Code: proto.ErrorMismatch})
	if got := drain(t, s, ms(1000)); got != nil {
		t.Errorf("sends %v", got)
	}
}

func TestNonceNeverWraps(t *testing.T) {
	t.Parallel()
	s := idle(t, Config{Ticket: hostTicket(nowhere), FirstNonce: math.MaxUint16})
	bindIdle(t, s)
	feed(s, ms(500), proto.Error{ID: hostID, Code: proto.ErrorMismatch})
	if got := nonces(drain(t, s, ms(500))); got != nil {
		t.Errorf("binds with %v", got)
	}
	if err := s.Err(); err != errNonceExhausted {
		t.Errorf("ended with %v", err)
	}
}

func TestRetriesRunOutOfNonces(t *testing.T) {
	t.Parallel()
	s := idle(t, Config{Ticket: hostTicket(nowhere), FirstNonce: math.MaxUint16})
	beginBind(s, 0)
	for now := int64(0); now < ms(9000) && s.Err() == nil; now += ms(250) {
		drain(t, s, now)
	}
	if err := s.Err(); err != errNonceExhausted {
		t.Errorf("ended with %v", err)
	}
}

func TestBindSurvivesLoss(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	lost := 0
	f.lose(func(m proto.Message) bool {
		_, ok := m.(proto.Bind)
		if ok {
			lost++
		}
		return ok && lost <= 5
	})
	s := running(t, brisk(hostTicket(f.addr)))
	if err := s.Bind(within(t)); err != nil {
		t.Fatal(err)
	}
	if n := f.binds(); len(n) < 6 || n[0] != 0 || n[5] != 1 {
		t.Errorf("nonces %v", n)
	}
	if err := s.Bind(within(t)); err != nil {
		t.Errorf("second Bind: %v", err)
	}
}

func TestBindTimeoutAgainstSilence(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	f.lose(func(proto.Message) bool { return true })
	cfg := brisk(hostTicket(f.addr))
	cfg.BindTimeout = 60 * time.Millisecond
	s := running(t, cfg)
	if err := s.Bind(within(t)); err != ErrBindTimeout {
		t.Errorf("Bind: %v", err)
	}
	if err := s.Bind(within(t)); err != ErrBindTimeout {
		t.Errorf("Bind after the end: %v", err)
	}
	if err := s.Roam(); err != ErrBindTimeout {
		t.Errorf("Roam after the end: %v", err)
	}
}

func TestBindHeedsItsContext(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	f.lose(func(proto.Message) bool { return true })
	s := running(t, brisk(hostTicket(f.addr)))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Bind(ctx); err != context.Canceled {
		t.Fatalf("Bind: %v", err)
	}
	f.lose(nil)
	if err := s.Bind(within(t)); err != nil {
		t.Errorf("Bind again: %v", err)
	}
}

// TestBindWithoutRun: Bind and Connect of a session without a Run end with the reason. Run may begin after them.
func TestBindWithoutRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := idle(t, Config{Ticket: joinerTicket(nowhere, joinerID)})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if err := s.Bind(ctx); err != errNotRunning {
			t.Errorf("Bind: %v", err)
		}
		if _, err := s.Connect(ctx); err != errNotRunning {
			t.Errorf("Connect: %v", err)
		}
		if took := time.Since(began); took > 2*runWithin {
			t.Errorf("after %v", took)
		}
	})
	f := startFakeRelay(t)
	s, err := New(brisk(hostTicket(f.addr)))
	if err != nil {
		t.Fatal(err)
	}
	bound := make(chan error, 1)
	go func() { bound <- s.Bind(within(t)) }()
	testkit.Eventually(t, "Bind waits", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.bind.active
	})
	var done sync.WaitGroup
	done.Go(func() { _ = s.Run(context.Background()) })
	if err := <-bound; err != nil {
		t.Errorf("Bind before Run: %v", err)
	}
	_ = s.Close()
	done.Wait()
}

func TestRoam(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	atHost, atJoiner := linked(t, f)
	for range 3 {
		before := atJoiner.s.LocalAddr()
		if err := atJoiner.s.Roam(); err != nil {
			t.Fatal(err)
		}
		if after := atJoiner.s.LocalAddr(); after == before {
			t.Errorf("still at %v", after)
		}
		if err := atJoiner.s.Bind(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	if st := atJoiner.s.Stats(); st.Nonce < 3 || st.Rebinds < 3 {
		t.Errorf("stats are %+v", st)
	}
	for _, c := range [][2]*Peer{{atHost, atJoiner}, {atJoiner, atHost}} {
		if _, err := c[0].Write([]byte("again")); err != nil {
			t.Fatal(err)
		}
		if got := read(t, c[1]); got != "again" {
			t.Errorf("read %q", got)
		}
	}
}

// TestRoamIgnoresTheOldSocket: an answer to the BIND before does not confirm the one
// that is under way.
func TestRoamIgnoresTheOldSocket(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{PingPeriod: time.Hour})
	d := &datagram{at: s.transport.socket.Load()}
	d.n = copy(d.buf[:], proto.BindReceived{}.Append(nil))
	if err := s.Roam(); err != nil {
		t.Fatal(err)
	}
	if d = s.handle(0, d); !s.bind.active {
		t.Error("bound by what came to the old socket")
	}
	d.at = s.transport.socket.Load()
	if s.handle(0, d); s.bind.active {
		t.Error("not bound by what came to the new one")
	}
}

// TestRelayForgets is a relay that lost the binding: ERROR 3 heals it.
func TestRelayForgets(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	s := running(t, brisk(hostTicket(f.addr)))
	if err := s.Bind(within(t)); err != nil {
		t.Fatal(err)
	}
	f.with(func() { f.places[hostID].endpoint = nowhere })
	testkit.Eventually(t, "bound again", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.places[hostID].endpoint == loopback(s) && f.places[hostID].nonce > 0
	})
}

// TestRelayFallsSilent is a relay that answers nothing for a while.
func TestRelayFallsSilent(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	cfg := brisk(hostTicket(f.addr))
	cfg.PingPeriod = 20 * time.Millisecond
	s := running(t, cfg)
	if err := s.Bind(within(t)); err != nil {
		t.Fatal(err)
	}
	f.lose(func(proto.Message) bool { return true })
	testkit.Eventually(t, "binds again", func() bool { return slices.Max(f.binds()) > 0 })
	f.lose(nil)
	if err := s.Bind(within(t)); err != nil {
		t.Fatal(err)
	}
	echoes := s.Stats().Echoes
	testkit.Eventually(t, "PINGs come back", func() bool { return s.Stats().Echoes > echoes })
}

func TestFatalErrors(t *testing.T) {
	t.Parallel()
	for _, code := range []proto.ErrorCode{proto.ErrorTimeout, proto.ErrorNotFound} {
		s := idleHost(t, Config{})
		feed(s, ms(1), proto.Error{ID: joinerID, Code: code})
		if err := s.Err(); err != nil {
			t.Errorf("ERROR %d about another allocation ended the session: %v", code, err)
		}
		feed(s, ms(1), proto.Error{ID: hostID, Code: code})
		var ended EndedError
		err := s.Bind(context.Background())
		if !errors.As(err, &ended) || ended.Code != code || !errors.Is(err, net.ErrClosed) {
			t.Errorf("ERROR %d gives %v", code, err)
		}
		if st := s.Stats(); st.OtherErrors != 1 || st.Errors[code] != 1 {
			t.Errorf("stats are %+v", st)
		}
	}
}

// TestLateErrorMismatch is an ERROR 3 that was on its way when the BIND that
// cures it left.
func TestLateErrorMismatch(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	mismatch := proto.Error{ID: hostID, Code: proto.ErrorMismatch}
	feed(s, ms(500), mismatch)
	if n := nonces(drain(t, s, ms(500))); !slices.Equal(n, []uint16{1}) {
		t.Fatalf("binds with %v", n)
	}
	feed(s, ms(520), mismatch)
	if got := drain(t, s, ms(749)); got != nil {
		t.Errorf("sends %v before the repetition is due", got)
	}
	if n := nonces(drain(t, s, ms(750))); !slices.Equal(n, []uint16{1}) {
		t.Errorf("repeats with %v", n)
	}
}
