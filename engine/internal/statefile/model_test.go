package statefile

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/ferryrelay/ferry/proto"
)

// script is a sequence of random changes that depends only on its seed and its first
// records, so that two processes can repeat it.
type script struct {
	random *rand.Rand
	ids    []proto.AllocationID // of all records, in an order that the script gives
	model  map[proto.AllocationID]Record
	next   uint64
	most   int
}

func newScript(seed uint64, most int, found []FoundRecord) *script {
	s := &script{random: rand.New(rand.NewPCG(seed, 1)), model: map[proto.AllocationID]Record{}, next: seed << 32, most: most}
	for _, f := range found {
		s.ids = append(s.ids, f.ID)
		s.model[f.ID] = f.Record
	}
	return s
}

func (s *script) step(l *File, places map[proto.AllocationID]Place) bool {
	kind := s.random.IntN(8)
	if len(s.ids) == 0 || kind < 2 && len(s.ids) < s.most {
		return s.add(l, places)
	}
	i := s.random.IntN(len(s.ids))
	id := s.ids[i]
	r, p := s.model[id], places[id]
	number := s.random.Uint64()
	switch kind {
	case 0, 1, 2:
		s.ids[i] = s.ids[len(s.ids)-1]
		s.ids = s.ids[:len(s.ids)-1]
		delete(s.model, id)
		delete(places, id)
		if l != nil {
			l.Remove(p)
		}
		return true
	case 3, 4:
		r.Nonce, r.Endpoint, r.Flags = uint16(number), number, Flags(number>>57)
		if l != nil {
			l.SetBinding(p, r.Nonce, r.Endpoint, r.Flags)
		}
	case 5:
		r.Links, r.Flags = uint16(number), Flags(number>>57)
		if l != nil {
			l.SetLinks(p, r.Links, r.Flags)
		}
	case 6:
		r.Endpoint = number
		if l != nil {
			l.SetEndpoint(p, number)
		}
	case 7:
		r.Code = Code{3_368_421 + number%4_000_000_000_000_000} // 666666 and beyond
		if l != nil {
			l.SetCode(p, r.Code)
		}
	}
	s.model[id] = r
	return true
}

func (s *script) add(l *File, places map[proto.AllocationID]Place) bool {
	s.next++
	r := Record{Tenant: s.random.Uint64(), Endpoint: s.random.Uint64(), Nonce: uint16(s.next), Flags: Host}
	for i := range 8 {
		r.ID[i] = byte(s.next >> (8 * i))
	}
	s.ids = append(s.ids, r.ID)
	s.model[r.ID] = r
	if l == nil {
		return true
	}
	places[r.ID] = l.Add(&r)
	return places[r.ID] != 0
}

func (s *script) holds(found []FoundRecord) bool {
	got := map[proto.AllocationID]Record{}
	for _, f := range found {
		got[f.ID] = f.Record
	}
	return len(got) == len(found) && maps.Equal(got, s.model)
}

func TestModel(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, false)
	random := rand.New(rand.NewPCG(3, 3))
	var model *script
	for round := range 60 {
		cfg.Boot = uint64(round) + 1
		cfg.Capacity = 100 + random.IntN(3000)
		cfg.Unmapped = random.IntN(2) == 0
		l, left := open(t, cfg)
		if round > 0 {
			if !model.holds(left.Records) || !left.Complete {
				t.Fatalf("round %d: %d records, want %d: %v", round, len(left.Records), len(model.model), left.Err)
			}
		}
		model = newScript(uint64(round)+1, 100, left.Records)
		places := map[proto.AllocationID]Place{}
		for _, f := range left.Records {
			places[f.ID] = f.Place
		}
		for range random.IntN(500) {
			if !model.step(l, places) {
				t.Fatalf("round %d: no place", round)
			}
		}
		distinct := map[Place]bool{}
		for _, p := range places {
			distinct[p] = true
		}
		if len(distinct) != len(model.model) {
			t.Fatalf("round %d: %d places for %d records", round, len(distinct), len(model.model))
		}
		if random.IntN(2) == 0 {
			crash(t, l)
		} else {
			closed(t, l)
		}
	}
}
