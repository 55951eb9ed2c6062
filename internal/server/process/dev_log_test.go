package process

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestDevLog: the log of dev tells a match step by step, and why something was refused.
func TestDevLog(t *testing.T) {
	t.Parallel()
	var log testkit.LogBuffer
	o := options(local(), Dev)
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r := start(t, o)
	hostTicket, code, ticket := r.reserveMatch(t)
	var problem *api.Problem
	if _, err := client.Redeem(t.Context(), r.caller(secret), "BCDFGH"); !errors.As(err, &problem) {
		t.Fatalf("an unknown code: %v", err)
	}
	sendWrongBind(t, r, hostTicket)
	has := func(parts ...string) bool {
		for line := range strings.Lines(log.String()) {
			all := true
			for _, p := range parts {
				all = all && strings.Contains(line, p)
			}
			if all {
				return true
			}
		}
		return false
	}
	play(t, hostTicket, ticket, func() {
		testkit.Within(t, time.Minute, "the line about the link",
			func() bool { return has("msg=\"linked", "player="+ticket.ID.String(), "host="+hostTicket.ID.String()) })
	})
	for _, parts := range [][]string{
		{"msg=allocated", "host=" + hostTicket.ID.String(), "max_connections=4"},
		{`msg="join code"`, "code=" + code, hostTicket.ID.String()},
		{`msg="joined by code, not bound yet"`, "player=" + ticket.ID.String(), "host=" + hostTicket.ID.String()},
		{"msg=bound", "host=" + hostTicket.ID.String(), "from=127.0.0.1:"},
		{"msg=bound", "player=" + ticket.ID.String()},
		{`msg="call refused"`, "call=join", "status=404"},
		{`msg="datagrams refused"`, "outcome=mac", "signature is wrong"},
		{"msg=ended", ticket.ID.String(), "because=closed"},
	} {
		testkit.Within(t, time.Minute, strings.Join(parts, " "), func() bool { return has(parts...) })
	}
}

func sendWrongBind(t *testing.T, r running, ticket client.Ticket) {
	t.Helper()
	conn, err := net.Dial("udp", r.relay.engine.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var signer proto.Signer
	msg := signer.Append(nil, proto.Bind{Nonce: 1, ConnectionData: ticket.ConnectionData[:]}, &proto.Key{1})
	if _, err := conn.Write(msg); err != nil {
		t.Fatal(err)
	}
}

// TestNoDevLog: other modes log neither join codes nor addresses.
func TestNoDevLog(t *testing.T) {
	t.Parallel()
	var log testkit.LogBuffer
	o := options(local(), Serve)
	o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := start(t, o)
	hostTicket, code, _ := r.reserveMatch(t)
	if text := log.String(); strings.Contains(text, code) || strings.Contains(text, hostTicket.ID.String()) {
		t.Errorf("log:\n%s", text)
	}
}

// TestOffInDev: dev says of each limit that it does not have that it has no effect.
func TestOffInDev(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Dev, Serve} {
		o := options(local(), mode)
		o.Level = new(slog.LevelVar)
		r := start(t, o)
		off := 0
		for _, s := range r.settings.values() {
			if s.Source == "no effect in dev" {
				off++
			}
		}
		want := map[Mode]int{Dev: len(offInDev), Serve: 0}[mode]
		if off != want {
			t.Errorf("%v: %d settings have no effect, want %d", mode, off, want)
		}
	}
}
