package link_test

import (
	"encoding/json"
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/link"
)

const ms = time.Millisecond

func TestParseConditions(t *testing.T) {
	for _, c := range []struct {
		text string
		want link.Conditions
		back string // what String makes of it
	}{
		{"", link.Conditions{}, "off"},
		{"off", link.Conditions{}, "off"},
		{"delay=100ms,jitter=10ms,loss=1,duplicate=0.5%", link.Conditions{Delay: 100 * ms, Jitter: 10 * ms, Loss: 1, Duplicate: 0.5},
			"delay=100ms,jitter=10ms,loss=1,duplicate=0.5"},
		{" reorder = 2 , reorder-by = 1s ", link.Conditions{Reorder: 2, ReorderBy: time.Second}, "reorder=2,reorder-by=1s"},
		{"ordered=true,loss-every=3,mtu=576", link.Conditions{Ordered: true, LossEvery: 3, MTU: 576}, "ordered=true,loss-every=3,mtu=576"},
		{"corrupt=1,corrupt-from=9", link.Conditions{Corrupt: 1, CorruptFrom: 9}, "corrupt=1,corrupt-from=9"},
		{"4g", link.Conditions{Delay: 40 * ms, Jitter: 12 * ms, Loss: 2}, "delay=40ms,jitter=12ms,loss=2"},
		{"4g+regional-median", link.Conditions{Delay: 105 * ms, Jitter: 22 * ms, Loss: 4}, "delay=105ms,jitter=22ms,loss=4"},
		{"2g+international-worst,loss=0", link.Conditions{Delay: 500 * ms, Jitter: 95 * ms}, "delay=500ms,jitter=95ms"},
		{"lan", link.Conditions{Delay: ms, Jitter: ms, Loss: 1}, "delay=1ms,jitter=1ms,loss=1"},
		{"no-internet+no-internet", link.Conditions{Delay: 2 * time.Second, Jitter: 2 * time.Second, Loss: 100}, "delay=2s,jitter=2s,loss=100"},
		{"unplayable", link.Conditions{Delay: 300 * ms, Jitter: 400 * ms, Loss: 30}, "delay=300ms,jitter=400ms,loss=30"},
	} {
		got, err := link.ParseConditions(c.text)
		if err != nil || got != c.want || got.String() != c.back {
			t.Errorf("%q is %+v = %q, %v", c.text, got, got, err)
		}
		if again, err := link.ParseConditions(got.String()); err != nil || again != got {
			t.Errorf("%q does not survive: %+v, %v", got, again, err)
		}
	}
}

func TestParseConditionsRefuses(t *testing.T) {
	for _, text := range []string{
		"delay", "delay=", "delay=5", "delay=-1ms", "delay=2m", "jitter=1h", "loss=101", "loss=-1", "loss=NaN", "loss=x",
		"mtu=-1", "mtu=1.5", "ordered=perhaps", "colour=red", "6g", "4g+", "+", "reorder-by=61s", "corrupt-from=-1",
	} {
		if p, err := link.ParseConditions(text); !errors.Is(err, link.ErrConditions) {
			t.Errorf("%q is %+v, %v", text, p, err)
		}
	}
}

func TestPresets(t *testing.T) {
	names := link.PresetNames()
	if len(names) != 14 {
		t.Errorf("%d presets", len(names))
	}
	for _, name := range names {
		p, err := link.ParseConditions(name)
		if err != nil || p == (link.Conditions{}) || p.Check() != nil {
			t.Errorf("%s is %v, %v", name, p, err)
		}
	}
	want := link.Conditions{Delay: 1110 * ms, Jitter: 1030 * ms, Loss: 100}
	if sum, err := link.ParseConditions("no-internet+3g"); err != nil || sum != want {
		t.Errorf("two networks in a row: %v, %v", sum, err)
	}
}

func TestConditionsAsText(t *testing.T) {
	type config struct{ Out, In link.Conditions }
	want := config{Out: link.Conditions{Delay: 1500 * time.Microsecond, Loss: 0.1, Ordered: true}}
	data, err := json.Marshal(want)
	if err != nil || string(data) != `{"Out":"delay=1.5ms,ordered=true,loss=0.1","In":"off"}` {
		t.Errorf("%s, %v", data, err)
	}
	var got config
	if err := json.Unmarshal(data, &got); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`{"In":"loss=200"}`), &got); !errors.Is(err, link.ErrConditions) || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	var p link.Conditions
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.TextVar(&p, "net", link.Conditions{}, "")
	if err := flags.Parse([]string{"-net", "4g,loss=7"}); err != nil || p.Loss != 7 || p.Delay != 40*ms {
		t.Errorf("%v, %v", p, err)
	}
}

func FuzzParseConditions(f *testing.F) {
	for _, seed := range []string{"", "off", "4g+regional-median,loss=1", "delay=1ns,jitter=59s", "loss=1e-300", "mtu=08", "a=b=c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := link.ParseConditions(text)
		if err != nil {
			if !errors.Is(err, link.ErrConditions) {
				t.Fatal(err)
			}
			return
		}
		if again, err := link.ParseConditions(p.String()); err != nil || again != p {
			t.Fatalf("%q is %+v, %q is %+v (%v)", text, p, p.String(), again, err)
		}
	})
}
