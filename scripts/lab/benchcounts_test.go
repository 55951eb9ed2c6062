//go:build lab && linux

package lab

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/ferryrelay/ferry/bench/report"
	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// counted is a figure of a report and what others counted.
type counted struct {
	transport, name string
	report          float64
	by              string
	count           float64
}

// TestBenchCounts compares reports of ferry bench over each transport with counts that the
// generator does not make: the relay's metrics, the kernel's in a network namespace of the relay,
// and the packets of a capture there. Each is within 2 %.
func TestBenchCounts(t *testing.T) {
	for _, tool := range []string{"unshare", "nsenter", "dumpcap", "tshark"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatal(err)
		}
	}
	var all []counted
	for _, transport := range []string{"udp", "dtls", "ws", "wss"} {
		all = append(all, countRun(t, transport)...)
	}
	table := &strings.Builder{}
	w := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "transport\tfigure\treport\tcounted by\tcount\tdifference")
	for _, c := range all {
		off := c.count/c.report - 1
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%s\t%.0f\t%+.2f %%\n", c.transport, c.name, c.report, c.by, c.count, 100*off)
		if math.Abs(off) > 0.02 || math.IsNaN(off) {
			t.Errorf("%s: %s is %.0f in the report, and %.0f by %s", c.transport, c.name, c.report, c.count, c.by)
		}
	}
	w.Flush()
	t.Log("\n" + table.String())
}

// isolated is a relay in a network namespace of its own, of which only loopback is up.
type isolated struct {
	*testing.T
	ns Namespace
}

func startIsolated(t *testing.T, args ...string) *isolated {
	t.Helper()
	r := &isolated{T: t, ns: Namespace{Name: "ferrycounts"}}
	if err := r.ns.create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", r.ns.Name).Run() })
	ferrytest.Start(t, r.command(append([]string{ferry, "dev", "--udp", "127.0.0.1:7777", "--http", "127.0.0.1:7777",
		"--admin", "127.0.0.1:7778", "--log-level", "error"}, args...)...))
	return r
}

func (r *isolated) command(args ...string) *exec.Cmd {
	cmd := exec.Command("ip", append([]string{"netns", "exec", r.ns.Name}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

func (r *isolated) metrics() string {
	r.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: r.ns.Dial}, Timeout: 30 * time.Second}
	res, err := client.Get("http://127.0.0.1:7778/metrics")
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return string(text)
}

func (r *isolated) sample(page, name string) float64 {
	r.Helper()
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				r.Fatal(err)
			}
			return v
		}
	}
	r.Fatalf("no sample %s", name)
	return 0
}

// udpReceived returns how many datagrams all UDP sockets of the namespace received.
func (r *isolated) udpReceived() (n float64) {
	r.Helper()
	text, err := r.command("nstat", "-az", "UdpInDatagrams").Output()
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "UdpInDatagrams" {
			n, err = strconv.ParseFloat(f[1], 64)
		}
	}
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// capture records the packets of the namespace until the function that it returns is called.
func (r *isolated) capture(file string) func() {
	r.Helper()
	cmd := r.command("dumpcap", "-q", "-i", "lo", "-B", "64", "-w", file)
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	testkit.Eventually(r, "the capture has begun", func() bool { i, err := os.Stat(file); return err == nil && i.Size() > 0 })
	return func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			r.Fatal(err)
		}
	}
}

// captured counts the messages to the relay and from it, of wire bytes each: datagrams, frames of
// WebSockets with content, or what records of TLS have of those. The kernel shows several datagrams
// to one address as a single packet (UDP_SEGMENT), and the relay puts several frames into a record.
// Connections with less than minMessages are calls of the API, at the same port.
func (r *isolated) captured(file, transport string, wire int) (to, from float64) {
	r.Helper()
	const frameHeader, maskLen, recordOverhead, udpHeader, minMessages = 4, 4, 17, 8, 100
	args := []string{"-r", file, "-T", "fields", "-e", "tcp.stream"}
	count := func(string) float64 { return 1 }
	switch transport {
	case "ws":
		args = append(args, "-e", "tcp.dstport", "-e", "websocket.opcode", "-Y", "websocket", "-d", "tcp.port==7777,http")
		count = func(opcode string) float64 {
			if opcode == "2" {
				return 1
			}
			return 0
		}
	case "wss":
		args = append(args, "-e", "tcp.dstport", "-e", "tls.record.length", "-Y", "tls.record.opaque_type==23", "-d", "tcp.port==7777,tls")
		count = func(length string) float64 { // Frames go on in the next record.
			n, _ := strconv.Atoi(length)
			return float64(n-recordOverhead) / float64(wire+frameHeader)
		}
	default:
		args = append(args, "-e", "udp.dstport", "-e", "udp.length", "-Y", "udp.port==7777")
		count = func(length string) float64 {
			n, _ := strconv.Atoi(length)
			return math.Max(1, math.Round(float64(n-udpHeader)/float64(wire)))
		}
	}
	out, err := exec.Command("tshark", args...).Output()
	if err != nil {
		r.Fatal(err)
	}
	streams := map[string][2]float64{} // by connection, empty for UDP
	for line := range strings.Lines(string(out)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		n := streams[fields[0]]
		for _, v := range strings.Split(fields[2], ",") {
			if fields[1] == "7777" {
				n[0] += count(v)
			} else {
				n[1] += count(v)
			}
		}
		streams[fields[0]] = n
	}
	for _, n := range streams {
		if n[0]+n[1] >= minMessages {
			to, from = to+n[0], from+n[1]
		}
	}
	if transport == "wss" {
		to *= float64(wire+frameHeader) / float64(wire+frameHeader+maskLen) // Only frames of clients have a mask.
	}
	return to, from
}

// countRun makes a run over a transport and returns its figures and the counts of others. The
// few messages of the set-up are in the counts of all but the report.
func countRun(t *testing.T, transport string) (all []counted) {
	t.Helper()
	dir := t.TempDir()
	var serve, load []string
	if transport == "wss" {
		cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
		out, err := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
			"-keyout", key, "-out", cert,
			"-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:relay.example").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		serve = []string{"--tls-cert", cert, "--tls-key", key, "--advertise-name", "relay.example"}
		load = []string{"--api", "https://127.0.0.1:7777", "--ca", cert, "--relay", "127.0.0.1:7777"}
	}
	t.Run(transport, func(t *testing.T) {
		r := startIsolated(t, serve...)
		file, packets := filepath.Join(dir, "run.json"), filepath.Join(dir, "packets.pcapng")
		before, udp := r.metrics(), r.udpReceived()
		stop := r.capture(packets)
		cmd := r.command(append([]string{
			ferry, "bench", "--transport", transport, "--matches", "3", "--rate", "1500", "--duration", "6s", "--warmup", "0s",
			"--drain", "5s", "--quiet",
			"--admin", "http://127.0.0.1:7778", "--json", file,
		}, load...)...)
		cmd.Stdout = io.Discard
		if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != 2 { // The counts of an invalid run are right, too.
			t.Fatal(err)
		}
		stop()
		after := r.metrics()
		udp = r.udpReceived() - udp
		runs, err := report.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		result := runs[0]
		sent, delivered := float64(result.Sent), float64(result.Delivered)
		grown := func(name string) float64 { return r.sample(after, name) - r.sample(before, name) }
		add := func(name string, figure float64, by string, count float64) {
			all = append(all, counted{transport, name, figure, by, count})
		}
		received, written := `ferry_datagrams_total{direction="in"}`, `ferry_datagrams_total{direction="out"}`
		if benchrig.IsTCP(result.Load.Transport) {
			received, written = `ferry_websocket_messages_total{direction="in"}`, `ferry_websocket_messages_total{direction="out"}`
		}
		add("sent", sent, "the relay: "+received, grown(received))
		add("delivered", delivered, "the relay: "+written, grown(written))
		add("delivered", delivered, "the relay: relayed", grown(`ferry_outcomes_total{outcome="relayed"}`))
		to, from := r.captured(packets, transport, result.WireBytes)
		add("sent", sent, "the capture", to)
		add("delivered", delivered, "the capture", from)
		if !benchrig.IsTCP(result.Load.Transport) {
			add("sent and delivered", sent+delivered, "the kernel: UdpInDatagrams", udp)
		}
	})
	return all
}
