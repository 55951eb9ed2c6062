package lab

import (
	"math/rand/v2"
	"testing"

	"github.com/ferryrelay/ferry/proto"
)

// TestMessages: a well-formed message of every type that clients send.
func TestMessages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	types := map[proto.Type]bool{}
	for _, m := range Messages(rng) {
		if _, err := proto.Decode(m); err != nil {
			t.Errorf("%x: %v", m, err)
		}
		kind, _ := proto.ParseType(m)
		types[kind] = kind.FromClient()
	}
	if len(types) != 6 || types[proto.TypeBindReceived] {
		t.Errorf("types %v", types)
	}
}

// TestMalformed: rubbish is rubbish, but for the few datagrams that random
// types and lengths make well-formed.
func TestMalformed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	good := 0
	for range 5000 {
		if _, err := proto.Decode(Malformed(rng)); err == nil {
			good++
		}
	}
	if good > 250 {
		t.Errorf("%d of 5,000 are well-formed", good)
	}
}

// TestStranger: attackers are where their replies are counted, and not among
// the players.
func TestStranger(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for range 10_000 {
		if s := RandomSource(rng); !AttackerReplyRange().Contains(s.Addr()) || s.Port() < 1024 {
			t.Fatal(s)
		}
	}
}
