package main

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"
)

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{"--only", "c,ferry", "--rate", "50000, 20000,20000", "--shapes", "star-up", "--root", "/x"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.rates) != 2 || o.rates[0] != 20000 || o.out != "/x/out" || o.rounds != 6 || o.bin("swap") != "/x/out/peers/swap" {
		t.Errorf("options are %+v", o)
	}
	list := chosen(o)
	if len(list) != 1 || list[0].name != "star-up" || list[0].max {
		t.Errorf("scenarios are %+v", list)
	}
	if got := list[0].players(o); len(got) != 2 || got[0].name != "ferry" || got[1].name != "c" {
		t.Errorf("players are %v", got)
	}
}

func TestQuick(t *testing.T) {
	o, err := parseOptions([]string{"--quick", "--rate", "1"}, io.Discard)
	if err != nil || o.rounds != 2 || o.maxStep != 0 || len(o.rates) != 1 || o.rates[0] != lowRate {
		t.Errorf("quick is %+v, %v", o, err)
	}
	if e := estimate(o); e < 10*time.Second || e > 2*time.Minute {
		t.Errorf("quick takes %v", e)
	}
}

func TestBadOptions(t *testing.T) {
	for _, line := range []string{
		"--rate 0", "--rate x", "--rate ,", "--rate NaN", "--only nobody", "--shapes round", "--rounds 0", "--duration 1h",
		"--warmup -1s", "--max-step 1m", "--retries -1", "--server-cpu 0", "stray", "--unknown", "--network wire",
	} {
		if _, err := parseOptions(strings.Fields(line), io.Discard); err == nil {
			t.Errorf("%s is accepted", line)
		}
	}
	if _, err := parseOptions([]string{"--help"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help gives %v", err)
	}
}

// TestVariants verifies that only ferry and the C loop take part with variants.
func TestVariants(t *testing.T) {
	for shape, want := range map[string]string{
		"low-load":   "ferry c ferry-200us ferry-500us c-200us c-500us",
		"star-merge": "ferry c c-merge",
	} {
		o, err := parseOptions([]string{"--shapes", shape}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		sc := chosen(o)[0]
		var got []string
		for _, p := range sc.players(o) {
			got = append(got, p.name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: players are %v, want %s", shape, got, want)
		}
	}
}
