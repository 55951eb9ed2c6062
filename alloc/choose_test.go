package alloc_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
)

// TestChooseRegion: the order of regions by what all players have measured. A player is written as
// REGION=MILLISECONDS or REGION=MILLISECONDS/LOSS.
func TestChooseRegion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, players string
		full          string // regions without room
		want          string // the order, or an error
	}{
		{"the worst player decides", "eu=20 us=90 ; eu=150 us=95", "", "us eu ap"},
		{"the mean decides among equals", "eu=20 us=90 ; eu=90 us=21 ; eu=50 us=51", "", "eu us ap"},
		{"the first region decides among the rest", "us=50 eu=50", "", "eu us ap"},
		{"a region that a player does not reach comes later", "eu=20 us=200 ; us=200", "", "us eu ap"},
		{"not even measured", "ap=300 ; ap=300 eu=0", "", "ap eu us"},
		{"loss counts as repetition", "eu=50/0.5 us=90", "", "us eu ap"},
		{"all is lost", "eu=10/1 us=300", "", "us eu ap"},
		{"a region without room", "eu=20 us=90", "eu", "us ap eu"},
		{"a region that is not there", "mars=1 us=90", "", "us eu ap"},
		{"no player reaches any", "mars=1 ; ", "", "eu us ap"},
		{"no room", "eu=20", "eu us ap", "full"},
	} {
		s, err := alloc.NewService(alloc.ServiceConfig{
			Relay: alloctest.NewRelay(), Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "eu"}, {ID: "us"}, {ID: "ap"}},
			HasRoom: func(region string, seats int) bool {
				return seats == 5 && !slices.Contains(strings.Fields(c.full), region)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var players [][]alloc.Measurement
		for text := range strings.SplitSeq(c.players, ";") {
			var player []alloc.Measurement
			for word := range strings.FieldsSeq(text) {
				region, rest, _ := strings.Cut(word, "=")
				ms, loss, _ := strings.Cut(rest, "/")
				rtt, err := time.ParseDuration(ms + "ms")
				if err != nil {
					t.Fatal(err)
				}
				player = append(player, alloc.Measurement{Region: region, RTT: rtt, Loss: map[string]float64{"0.5": 0.5, "1": 1}[loss]})
			}
			players = append(players, player)
		}
		scores, err := s.ChooseRegion(alloc.Caller{}, 4, players)
		var got []string
		for _, r := range scores {
			got = append(got, r.Region)
		}
		if errors.Is(err, alloc.ErrFull) {
			got = []string{"full"}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v (%v), want %s", c.name, got, err, c.want)
		}
		if c.name == "loss counts as repetition" && (scores[1].WorstLatency != 100*time.Millisecond || scores[1].Reached != 1) {
			t.Errorf("%s: %+v", c.name, scores[1])
		}
	}
}
