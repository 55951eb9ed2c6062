package history

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// TestAccounts: with more players and tenants than are kept, no sum is lost, the players that sent most
// are kept, and the next process continues with the same.
func TestAccounts(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := newAccounts(began)
	var want operator.PlayerCounts
	const players, largest = 2 * maxAccounts, 100
	add := func(i int, name string, bytes uint64) {
		var player alloc.PlayerHash
		binary.LittleEndian.PutUint32(player[:], uint32(i))
		used := operator.PlayerCounts{Allocations: 1, PlayerSeconds: 2, Datagrams: 3, Bytes: bytes}
		a.add(player, account{alloc.Tenant{Project: fmt.Sprint(i % (2 * maxOtherTenants))}, name, used})
		want.Add(used)
	}
	for i := range players {
		bytes := uint64(i % 1000)
		if i < largest {
			bytes += 1 << 20
		}
		add(i, fmt.Sprint("player ", i), bytes)
	}
	add(7, "", 5)       // its name is known
	add(players, "", 5) // no name
	sum := func(k kept) (sum operator.PlayerCounts) {
		for _, x := range k.ByPlayer {
			sum.Add(x.PlayerCounts)
		}
		for _, x := range k.Others {
			sum.Add(x)
		}
		return sum
	}
	check := func(k kept) {
		t.Helper()
		if got := sum(k); got != want {
			t.Errorf("the sum is %+v, want %+v", got, want)
		}
		if len(k.ByPlayer) != maxAccounts || len(k.Others) > maxOtherTenants+1 || !k.Since.Equal(began) {
			t.Errorf("%d players, %d others, since %v", len(k.ByPlayer), len(k.Others), k.Since)
		}
		for i := range largest {
			var player alloc.PlayerHash
			binary.LittleEndian.PutUint32(player[:], uint32(i))
			if x := k.ByPlayer[player]; x.Name != fmt.Sprint("player ", i) || x.Bytes < 1<<20 || (x.Allocations == 2) != (i == 7) {
				t.Errorf("player %d: %+v", i, x)
			}
		}
	}
	check(a.all())

	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Directory: NewDirectory(), Logger: slog.New(slog.DiscardHandler)}
	old, next := New(cfg), New(cfg)
	old.accounts = a
	written := make(chan error, 1)
	go func() { written <- old.HandOver(to) }()
	if err := next.TakeOver(from); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	check(next.accounts.all())
}
