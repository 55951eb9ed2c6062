package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// need skips a test without a program, except in CI, where it has to be there.
func need(t *testing.T, program string) {
	t.Helper()
	_, err := exec.LookPath(program)
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("CI lacks %s", program)
	default:
		t.Skipf("%s is not installed", program)
	}
}

func smokeArgs(out, only string) []string {
	return []string{
		"--shapes", "", "--anyway", "--root", "../../..", "--out", out, "--only", only, "--rounds", "1", "--rate", "1000",
		"--duration", "200ms", "--warmup", "0s", "--retries", "0",
	}
}

func smoke(t *testing.T, only string) options {
	t.Helper()
	runtime.LockOSThread() // Children die with the thread that started them.
	o, err := parseOptions(smokeArgs(t.TempDir(), only), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.serverCPU = runtime.NumCPU() - 1
	return o
}

func arrived(r *bench.Result) bool { return r.Delivered > 0 && 2*r.Delivered >= r.Sent }

// play plays scenarios. A run is as short as a machine may stand still, so that
// all are played again, four times at most, when next to nothing arrived in one.
func play(t *testing.T, s *session, list ...scenario) {
	t.Helper()
	for range 5 {
		s.samples = nil
		for _, sc := range list {
			if err := s.scenario(t.Context(), sc); err != nil {
				t.Fatal(err)
			}
		}
		if len(s.faults) > 0 || !slices.ContainsFunc(s.samples, func(one sample) bool { return !arrived(&one.Result) }) {
			return
		}
	}
}

func whole(t *testing.T, s *session) {
	t.Helper()
	for _, one := range s.samples {
		r := &one.Result
		if !arrived(r) || r.Misdelivered+r.Corrupt+r.Duplicated > 0 || len(r.Errors) > 0 {
			t.Errorf("%s, %s: delivered %d of %d, misdelivered %d, corrupt %d, twice %d, errors %v", one.Scenario, one.Peer,
				r.Delivered, r.Sent, r.Misdelivered, r.Corrupt, r.Duplicated, r.Errors)
		}
	}
}

// TestPeers: each relay, in a process of its own, delivers the datagrams of
// each shape to the right endpoints. The machine may cause some losses.
func TestPeers(t *testing.T) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			o := smoke(t, p.name)
			for _, r := range o.missing() {
				need(t, r.program)
			}
			if err := build(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			s := &session{o: o, out: io.Discard}
			var list []scenario
			for _, sc := range chosen(o) {
				if sc.matches = 6; sc.variants == nil && !sc.secure {
					list = append(list, sc)
				}
			}
			play(t, s, list...)
			if len(s.faults) > 0 || len(s.samples) != 6 {
				t.Fatalf("%d samples, faults %v", len(s.samples), s.faults)
			}
			whole(t, s)
		})
	}
}

func playOne(t *testing.T, name, only string, samples int) *session {
	t.Helper()
	o := smoke(t, only)
	o.shapes = []string{name}
	if err := build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	s := &session{o: o, out: io.Discard}
	sc := chosen(o)[0]
	sc.matches, sc.rates = 6, o.rates
	play(t, s, sc)
	if len(s.faults) > 0 || len(s.samples) != samples {
		t.Fatalf("%d samples, faults %v", len(s.samples), s.faults)
	}
	whole(t, s)
	return s
}

// TestSecured verifies delivery over DTLS, and that datagrams on the wire are
// longer by the record overhead.
func TestSecured(t *testing.T) {
	need(t, "turnserver")
	wire := map[string]int{}
	for _, one := range playOne(t, "dtls", "ferry,coturn", 6).samples {
		wire[one.Peer] = one.Result.WireBytes
	}
	if plain := wire["ferry"]; plain == 0 || wire["ferry-dtls"] != plain+37 || wire["coturn-dtls"] == 0 {
		t.Errorf("on the wire: %v", wire)
	}
}

// TestMerging verifies that datagrams that the C loop merges arrive separately.
func TestMerging(t *testing.T) {
	need(t, "gcc")
	playOne(t, "star-merge", "c", 4)
}

func TestReport(t *testing.T) {
	need(t, "gcc")
	o := smoke(t, "c,ferry")
	o.shapes = []string{"star-merge"}
	if err := build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s := &session{o: o, out: &out}
	sc := chosen(o)[0]
	sc.rates = o.rates
	if err := s.scenario(t.Context(), sc); err != nil || len(s.faults) > 0 {
		t.Fatal(err, s.faults)
	}
	for i := range s.samples {
		s.samples[i].Bad = "" // A busy machine shall not empty the table.
		if s.samples[i].Step == stepRate {
			s.samples[i].Rate = 5 * lowRate
		}
	}
	if err := s.report(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.out, "peers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil || len(d.Samples) != 6 || len(d.Ratios) != 1 {
		t.Errorf("peers.json has %d samples, %d tables: %v", len(d.Samples), len(d.Ratios), err)
	}
	for _, want := range []string{"C loop, merging / C loop", "ferry / C loop", "CPU per datagram at 100,000/s", "Not comparable"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, out.String())
		}
	}
}

// TestServerEnds: the error about a relay that has ended contains its output.
func TestServerEnds(t *testing.T) {
	need(t, "sh")
	o := smoke(t, "null")
	s, err := start(o, o.out, "sh", "-c", "echo broken >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.address(t.Context()); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a relay that ends gives %v", err)
	}
	s.stop()
}

// TestStop verifies that a relay that ignores SIGTERM is killed.
func TestStop(t *testing.T) {
	need(t, "sh")
	o := smoke(t, "null")
	s, err := start(o, o.out, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.line(t.Context(), func(l string) bool { return l == "ready" }); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if err := syscall.Kill(s.pid(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
}

// TestInterrupt: the end of the context ends a session and its relays.
func TestInterrupt(t *testing.T) {
	o := smoke(t, "null")
	o.duration = 20 * time.Second
	if err := build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	s := &session{o: o, out: io.Discard}
	if err := s.scenario(ctx, chosen(o)[0]); !errors.Is(err, context.Canceled) || len(s.faults) > 0 {
		t.Errorf("an interrupted session ends with %v, faults %v", err, s.faults)
	}
}
