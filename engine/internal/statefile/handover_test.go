package statefile

import (
	"reflect"
	"testing"

	"github.com/ferryrelay/ferry/proto"
)

// TestCloseForHandover checks that a process finds what another has left, if it knows the places: the
// records, no others, and all other places free.
func TestCloseForHandover(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		cfg.Capacity = 1000
		l, _ := open(t, cfg)
		var places []Place
		for i := range 200 {
			p := l.Add(&Record{ID: proto.AllocationID{byte(i), 1}, Tenant: uint64(i), Flags: Host})
			if i%3 == 0 {
				l.Remove(p)
				continue
			}
			l.SetBinding(p, uint16(i), uint64(i), Host|Bound)
			places = append(places, p)
		}
		if err := l.CloseForHandover(); err != nil {
			t.Fatal(err)
		}
		whole := openAndCrash(t, cfg)
		cfg.Places = places
		next, left := open(t, cfg)
		if !left.Complete || len(left.Records) != len(places) || !reflect.DeepEqual(left.Records, whole.Records) {
			t.Errorf("with places: complete %v, %d records, without: %d of %d", left.Complete, len(left.Records), len(whole.Records), len(places))
		}
		used := map[Place]bool{}
		for _, p := range places {
			used[p] = true
		}
		for range 100 {
			if p := next.Add(&Record{ID: proto.AllocationID{255}}); p == 0 || used[p] {
				t.Fatalf("a record was added at place %d, which is used", p)
			} else {
				used[p] = true
			}
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
