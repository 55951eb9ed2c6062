package main

import (
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{"--only", "c,ferry", "--rate", "50000, 20000,20000", "--shapes", "star-up", "--root", "/x"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.rates) != 2 || o.rates[0] != 20000 || o.out != "/x/out" || o.rounds != 3 || o.bin("swap") != "/x/out/peers/swap" {
		t.Errorf("options are %+v", o)
	}
	list := chosen(o)
	if len(list) != 1 || list[0].name != "star-up" {
		t.Errorf("scenarios are %+v", list)
	}
	if got := list[0].players(o); len(got) != 2 || got[0].name != "ferry" || got[1].name != "c" {
		t.Errorf("players are %v", got)
	}
}

// TestDefaults: a run without options takes about two minutes.
func TestDefaults(t *testing.T) {
	o, err := parseOptions(nil, io.Discard)
	if err != nil || len(o.rates) != 1 || o.rates[0] != lowRate {
		t.Errorf("%+v, %v", o, err)
	}
	if e := estimate(o); e < 90*time.Second || e > 150*time.Second {
		t.Errorf("a run takes %v", e)
	}
}

// TestLeaveOut: a relay whose program is missing is left out with the command that installs it, unless it is asked for.
func TestLeaveOut(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	o, err := parseOptions(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.leaveOut(); err != nil || strings.Join(o.only, " ") != "ferry null pion" || len(o.left) != 2 ||
		o.left[1] != "coturn: not measured, turnserver is missing; install it with: apt-get install coturn" {
		t.Errorf("%v, %q, %v", o.only, o.left, err)
	}
	for _, args := range []string{"--only ferry,coturn", "--network veth"} {
		o, err := parseOptions(strings.Fields(args), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.leaveOut(); err == nil || !strings.Contains(err.Error(), "apt-get install") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestBusy(t *testing.T) {
	for _, c := range []struct {
		time processorTime
		want string
	}{
		{processorTime{400, 381, 3}, ""},
		{processorTime{400, 370, 0}, "other processes take 8 % of its processors, of at most 5 %, and the hypervisor 0.0 %, of at most 1 %; stop what runs"},
		{processorTime{400, 390, 8}, "the hypervisor 2.0 %, of at most 1 %; other guests of the hypervisor run"},
		{processorTime{}, ""},
	} {
		if err := c.time.judge(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.time, err)
		}
	}
	if u, err := readProcessorTime(); err != nil || u.total < u.idle+u.steal || u.idle <= 0 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestBadOptions(t *testing.T) {
	for _, line := range []string{
		"--rate 0", "--rate x", "--rate ,", "--rate NaN", "--only nobody", "--shapes round", "--rounds 0", "--duration 1h",
		"--warmup -1s", "--retries -1", "--server-cpu 0", "stray", "--unknown", "--network wire", "--network veth-napi",
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
	o, err := parseOptions([]string{"--shapes", "star-merge"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	sc := chosen(o)[0]
	var got []string
	for _, p := range sc.players(o) {
		got = append(got, p.name)
	}
	if strings.Join(got, " ") != "ferry c c-merge" {
		t.Errorf("players are %v", got)
	}
}

// TestCoturnSources: sources are built apart, the program's version is in the columns, and a coturn
// that multiplexes peers is measured so too, in pairs only.
func TestCoturnSources(t *testing.T) {
	need(t, "make")
	source := t.TempDir()
	for name, text := range map[string]string{
		"configure": "#!/bin/sh\necho \"all: ; touch $CFLAGS\" >Makefile\n",
		"Makefile":  "broken",
	} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	parse := func() options {
		o, err := parseOptions([]string{"--coturn", source, "--only", "coturn", "--shapes", "", "--out", t.TempDir()}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if err := build(t.Context(), parse()); err == nil {
		t.Error("sources without a program are built")
	}
	program := "bin/turnserver:\n\tmkdir bin\n\t(echo '#!/bin/sh'; echo 'echo --multiplex-peer $(CFLAGS)'; echo echo 4.17.1) >bin/turnserver\n\tchmod +x bin/turnserver\n"
	if err := os.WriteFile(filepath.Join(source, "configure"), []byte("#!/bin/sh\ncat >Makefile <<'END'\n"+program+"END\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o := parse()
	if err := build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer clear(versions)
	o.readVersions()
	if text, err := os.ReadFile(filepath.Join(source, "Makefile")); err != nil || string(text) != "broken" {
		t.Errorf("the sources were changed: %s, %v", text, err)
	}
	if a, b, c := title("coturn"), title(multiplexed), title("coturn-dtls"); a != "coturn 4.17.1" || b != "coturn 4.17.1, multiplexed" || c != "coturn 4.17.1, DTLS" {
		t.Errorf("the columns are %q, %q, %q", a, b, c)
	}
	for _, sc := range chosen(o) {
		takesPart := slices.ContainsFunc(sc.players(o), func(p peer) bool { return p.name == multiplexed })
		if takesPart != (sc.name == "pairs") {
			t.Errorf("%s: %v", sc.name, takesPart)
		}
	}
}
