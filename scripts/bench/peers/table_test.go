package main

import (
	"strings"
	"testing"
)

func TestTableWrite(t *testing.T) {
	tab := table{
		Title: "Title", Head: []string{"", "a", "µs"}, Rows: [][]string{{"first", "1", "2"}, {"x", "1000", ""}}, Foot: []string{"foot"},
	}
	var b strings.Builder
	if err := tab.write(&b); err != nil {
		t.Fatal(err)
	}
	want := "\nTitle\n\n|       | a    | µs  |\n| ---   | ---  | --- |\n| first | 1    | 2   |\n| x     | 1000 |     |\n  foot\n"
	if b.String() != want {
		t.Errorf("the table is\n%q, want\n%q", b.String(), want)
	}
}

func TestTables(t *testing.T) {
	s := pretend(3, map[string][]float64{"ferry": {1, 10, 12}, "c": {1, 10, 10}, "coturn": {1, 20, 0}})
	list := s.ratios()
	if len(list) != 1 {
		t.Fatalf("%d tables", len(list))
	}
	got := list[0]
	if strings.Join(got.Head, "|") != "median (lowest–highest)|ferry / C loop|ferry / coturn" {
		t.Errorf("the head is %q", got.Head)
	}
	if want := "pairs, CPU per datagram at 20,000/s|1.10 (1.00–1.20)|0.50, 1 left out"; strings.Join(got.Rows[0], "|") != want {
		t.Errorf("the first row is %q, want %q", got.Rows[0], want)
	}
	if len(got.Foot) != 2 || !strings.Contains(got.Foot[1], "coturn: 1 of 2 runs do not count, the first because it was noisy") {
		t.Errorf("the foot is %q", got.Foot)
	}
	abs := s.absolute()[0]
	if want := "CPU per datagram at 20,000/s|11 ns|10 ns|20 ns"; strings.Join(abs.Rows[0], "|") != want {
		t.Errorf("the medians are %q, want %q", abs.Rows[0], want)
	}
}

func TestThousands(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567.4: "1,234,567"} {
		if got := thousands(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}
