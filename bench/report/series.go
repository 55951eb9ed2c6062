package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// OpenMetrics writes the seconds of runs in the text format of OpenMetrics 1.0. Each sample has the time
// at which its second ended. The metrics, with the name of a run as the label run, are
//
//	ferry_bench_datagrams_total{state}      offered, sent and delivered since the start of the run
//	ferry_bench_latency_seconds{quantile}   of what arrived in the second: 0.5, 0.99, and 1 for the longest
func OpenMetrics(w io.Writer, runs ...bench.Result) error {
	var b strings.Builder
	names := labels(runs)
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	sample := func(i, second int, name, label string, value string) {
		at := runs[i].Started.Add(time.Duration(second+1) * time.Second)
		fmt.Fprintf(&b, "ferry_bench_%s{run=\"%s\",%s} %s %.3f\n", name, escape.Replace(names[i]), label, value, float64(at.UnixMilli())/1e3)
	}
	fmt.Fprint(&b, "# TYPE ferry_bench_datagrams counter\n# HELP ferry_bench_datagrams Datagrams since the start of the run.\n")
	for i, r := range runs {
		for _, c := range counts {
			total := 0.0
			for _, s := range r.Seconds {
				total += c.get(s)
				sample(i, s.At, "datagrams_total", `state="`+c.name+`"`, strconv.FormatFloat(total, 'f', -1, 64))
			}
		}
	}
	fmt.Fprint(&b, "# TYPE ferry_bench_latency_seconds summary\n# UNIT ferry_bench_latency_seconds seconds\n"+
		"# HELP ferry_bench_latency_seconds Latency of the datagrams that arrived in a second, from when they were due.\n")
	for i, r := range runs {
		for n, quantile := range []string{"0.5", "0.99", "1"} {
			for _, s := range r.Seconds {
				if v := latencies[n].get(s); v > 0 {
					sample(i, s.At, "latency_seconds", `quantile="`+quantile+`"`, strconv.FormatFloat(v/1e9, 'f', -1, 64))
				}
			}
		}
	}
	b.WriteString("# EOF\n")
	_, err := io.WriteString(w, b.String())
	return err
}
