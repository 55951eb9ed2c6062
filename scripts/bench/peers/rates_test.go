package main

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sweep is a session of two rounds over the rates of the sweep: the C loop's runs do not
// count.
func sweep(t *testing.T) *session {
	s := &session{o: options{rounds: 2, rates: []float64{1000, lowRate}, shapes: []string{rateSweep}, out: t.TempDir(), network: netLoopback},
		out: io.Discard}
	for round := 1; round <= 2; round++ {
		for _, rate := range chosen(s.o)[0].rates {
			for _, name := range []string{"ferry", "c"} {
				one := sample{Scenario: rateSweep, Peer: name, Round: round, Step: stepRate, Rate: rate}
				one.Result.Server.PerDatagram = 1e9 / rate
				one.Result.Latency.P50, one.Result.Latency.P99 = 50*time.Microsecond, time.Millisecond
				if name == "c" {
					one.Bad = "it was noisy"
				}
				s.samples = append(s.samples, one)
			}
		}
	}
	return s
}

// TestRates: the drawing is well-formed, and has a full dot for each valid median and a
// hollow one for each other.
func TestRates(t *testing.T) {
	s := sweep(t)
	d := s.document()
	d.Commit = `<&"`
	if err := s.writeRates(&d); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(s.o.out, "peers-rates.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for dec := xml.NewDecoder(strings.NewReader(string(text))); ; {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	want := 3 * len(chosen(s.o)[0].rates)
	full, hollow := strings.Count(string(text), `fill="#1769aa" stroke="#1769aa"`),
		strings.Count(string(text), `fill="#ffffff" stroke="#52606d"`)
	if full != want || hollow != want {
		t.Errorf("%d full and %d hollow dots, want %d of each", full, hollow, want)
	}
}

// TestResume: the rounds of an earlier run come before those of this one.
func TestResume(t *testing.T) {
	s := sweep(t)
	b, err := json.Marshal(s.document())
	if err == nil {
		err = s.write(resultsFile, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	again := &session{o: s.o, out: io.Discard}
	again.o.rounds, again.o.more = 3, true
	if err := again.resume(); err != nil || again.earlier != 2 || again.o.rounds != 5 || len(again.samples) != len(s.samples) {
		t.Errorf("%d earlier rounds of %d with %d samples: %v", again.earlier, again.o.rounds, len(again.samples), err)
	}
	again.o.network = netVeth
	if again.resume() == nil {
		t.Error("rounds over another network are added")
	}
}
