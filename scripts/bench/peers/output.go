package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// document is the content of out/peers.json.
type document struct {
	Written      time.Time     `json:"written"`
	Command      []string      `json:"command"`
	Commit       string        `json:"commit"`
	Machine      bench.Machine `json:"machine"`
	Network      string        `json:"network"`
	Rounds       int           `json:"rounds"` // the first is not counted unless it is the only one
	Ratios       []table       `json:"ratios"`
	Medians      []table       `json:"medians"`
	Incomparable []string      `json:"incomparable"`
	Faults       []string      `json:"faults,omitempty"`
	Samples      []sample      `json:"samples"`
}

const resultsFile = "peers.json"

// report prints the results and writes the files.
func (s *session) report() error {
	d := document{
		Written: time.Now().UTC().Truncate(time.Second), Command: s.o.typed(), Commit: s.commit,
		Machine: s.samples[0].Result.Machine, Rounds: s.o.rounds,
		Ratios: s.ratios(), Medians: s.absolute(),
		Network: s.o.network, Incomparable: append(slices.Clone(incomparable), networks[s.o.network]), Faults: s.faults, Samples: s.samples,
	}
	if err := s.print(&d); err != nil {
		return err
	}
	b, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(s.o.out, resultsFile)
	fmt.Fprintln(s.out, "written:", path)
	return os.WriteFile(path, b, 0o644)
}

func (s *session) print(d *document) error {
	counted := fmt.Sprintf("round 1 of %d does not count", d.Rounds)
	if d.Rounds == 1 {
		counted = "1 round: no median"
	}
	fmt.Fprintf(s.out, "\nFERRY AGAINST ITS PEERS: the median (lowest–highest) of the ratios of paired runs, %s.\n"+
		"CPU, p50, p99: below 1 is better for the one in front.\n%s, %d processors, Linux %s, commit %s, over %s\n",
		counted, d.Machine.CPU, d.Machine.Cores, d.Machine.Kernel, d.Commit, d.Network)
	for _, t := range slices.Concat(d.Ratios, d.Medians) {
		if err := t.write(s.out); err != nil {
			return err
		}
	}
	bad := 0
	for i := range s.samples {
		if s.samples[i].Bad != "" {
			bad++
		}
	}
	if bad > 0 {
		fmt.Fprintf(s.out, "\n%d of %d runs do not count, for the reasons above. Measure again on a quiet machine.\n", bad, len(s.samples))
	}
	_, err := fmt.Fprintf(s.out, "\nNot comparable:\n  - %s\n\n", strings.Join(d.Incomparable, "\n  - "))
	return err
}
