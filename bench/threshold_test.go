package bench

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func sampleResult() *Result {
	return &Result{
		Sent: 10_000, Delivered: 9_990, Lost: 10, Duplicated: 1, Reordered: 100, DeliveredRate: 99_900,
		Latency: Latency{
			Samples: 9990, Mean: 50 * time.Microsecond, P50: 40 * time.Microsecond, P90: 80 * time.Microsecond,
			P99: 5 * time.Millisecond, P999: 9 * time.Millisecond, Max: 12 * time.Millisecond,
		},
		Server: Process{PID: 1, Datagrams: 9990, PerDatagram: 3400},
		Control: &Control{
			Without: &Part{Latency: Latency{Samples: 1}}, With: Part{Latency: Latency{Samples: 1}}, P99Moved: -time.Millisecond,
			Binds: &Calls{AnsweredRate: 99_000}, Allocations: &Calls{AnsweredRate: 500},
		},
	}
}

func TestThresholds(t *testing.T) {
	for s, want := range map[string]bool{
		"p99<5ms": false, "p99<=5ms": true, "p99>4ms": true, "p99>=5.1ms": false,
		"mean<51us": true, "p50<41µs": true, "p90<80us": false, "p999<10ms": true, "max<12ms": false,
		"loss<0.1%": false, "loss<=0.1%": true, "loss<0.0011": true, "dup<0.1%": true, "reorder<1%": false,
		"cpu<3.5us": true, "cpu<3400ns": false,
		"delivered>99k": true, "delivered>=0.1M": false, "delivered>99000/s": true,
		"moved<2ms": true, "moved>0s": false, "binds>=99k": true, "binds>99k": false, "allocations>400/s": true,
		" p50 < 41us , loss<1% ": true, "p50<41us,loss<0.01%": false, "": true,
	} {
		all, err := ParseThresholds(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		if got := len(Missed(all, sampleResult())) == 0; got != want {
			t.Errorf("%q: met %v, want %v", s, got, want)
		}
	}
}

func TestThresholdsRefused(t *testing.T) {
	for _, s := range []string{
		"p99", "p99=5ms", "p98<5ms", "p99<5", "p99<-5ms", "<5ms", "loss<NaN", "loss<", "p99<5ms,", ",",
		"loss<1%%", "delivered>1G", "delivered>Inf", "p99<<5ms", "cpu<5%",
	} {
		if all, err := ParseThresholds(s); !errors.Is(err, ErrThreshold) {
			t.Errorf("%q: %v, %v", s, all, err)
		}
	}
}

// TestThresholdsUnmeasured: what was not measured meets no condition.
func TestThresholdsUnmeasured(t *testing.T) {
	for _, s := range []string{"p99<5ms", "loss<1%", "cpu<1s", "delivered>=0", "dup<=0", "moved<1s", "binds>=0", "allocations>=0"} {
		all, err := ParseThresholds(s)
		if err != nil {
			t.Fatal(err)
		}
		if len(Missed(all, &Result{})) != 1 {
			t.Errorf("an empty result meets %s", s)
		}
	}
}

func FuzzThresholds(f *testing.F) {
	f.Add("p99<5ms,loss<0.1%")
	f.Add("delivered>=100k/s, cpu <= 3.5us")
	f.Add("<>,=")
	f.Fuzz(func(t *testing.T, s string) {
		all, err := ParseThresholds(s)
		if err != nil {
			return
		}
		for _, th := range all {
			again, err := ParseThresholds(th.Text)
			if err != nil || len(again) != 1 || again[0] != th {
				t.Errorf("%q in %q: %+v became %+v, %v", th.Text, s, th, again, err)
			}
			if !strings.Contains(s, th.Text) {
				t.Errorf("%q is not in %q", th.Text, s)
			}
		}
	})
}
