package app

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestWhy follows a host and a player from the reservation to the end.
func TestWhy(t *testing.T) {
	r := start(t, options(local(), Serve))
	hostTicket, err := client.Reserve(t.Context(), r.caller(secret), 4, "")
	if err != nil {
		t.Fatal(err)
	}
	code, err := r.caller(secret).JoinCode(t.Context(), hostTicket.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := client.Redeem(t.Context(), r.caller(secret), code)
	if err != nil {
		t.Fatal(err)
	}
	why := func(id string) (y admin.Why) {
		t.Helper()
		if _, body := fetch(t, r.AdminURL()+"/why/"+id); json.Unmarshal([]byte(body), &y) != nil {
			t.Fatalf("answer %q", body)
		}
		return y
	}
	expect := func(id, what string) {
		t.Helper()
		testkit.Within(t, time.Minute, what, func() bool { return strings.Contains(why(id).Because, what) })
	}
	expect(hostTicket.ID.String(), "no BIND has arrived")
	expect(ticket.ID.String(), "no BIND has arrived")
	expect("00000000-0000-4000-8000-000000000001", "nothing is known of it")
	play(t, hostTicket, ticket, func() {
		expect(ticket.ID.String(), "it plays")
		expect(hostTicket.ID.String(), "it plays")
	})
	expect(ticket.ID.String(), "it ended")
	expect(hostTicket.ID.String(), "it ended")
	var kinds []string
	for _, e := range why(hostTicket.ID.String()).Events {
		kinds = append(kinds, e.What)
	}
	if got := strings.Join(kinds, " "); !strings.HasPrefix(got, "reserved code joined bound linked") || !strings.HasSuffix(got, "ended") {
		t.Errorf("events of the host: %s", got)
	}
}
