package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

// clockTick is the unit of times in /proc: USER_HZ is 100 on every platform of
// Linux that Go has.
const clockTick = 10 * time.Millisecond

// processSample is one reading of a process.
type processSample struct {
	at                     int64 // ns of sock.Now
	threads                map[string]threadSample
	user, system           time.Duration
	rss                    uint64
	voluntary, involuntary uint64
}

// threadSample is what /proc/PID/task/TID/schedstat has: time on a processor
// and time spent waiting for one.
type threadSample struct{ run, wait time.Duration }

// readProcess reads /proc/PID. Threads that come or go meanwhile are left out.
func readProcess(pid int) (processSample, error) {
	s := processSample{at: sock.Now(), threads: map[string]threadSample{}}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	tasks, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return s, fmt.Errorf("bench: process %d: %w", pid, err)
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(filepath.Join(dir, "task", task.Name(), "schedstat"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		n := parseNumbers(string(stat))
		if err != nil || len(n) < 2 {
			return s, fmt.Errorf("bench: process %d: schedstat %q: %w", pid, stat, err)
		}
		s.threads[task.Name()] = threadSample{time.Duration(n[0]), time.Duration(n[1])}
		status, err := os.ReadFile(filepath.Join(dir, "task", task.Name(), "status"))
		if err == nil {
			s.voluntary += parseField(status, "voluntary_ctxt_switches:")
			s.involuntary += parseField(status, "nonvoluntary_ctxt_switches:")
		}
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return s, fmt.Errorf("bench: process %d: %w", pid, err)
	}
	s.user, s.system = userSystem(string(stat))
	s.rss, err = readRSS(pid)
	return s, err
}

// userSystem takes utime and stime out of /proc/PID/stat (proc(5)), where the
// command name may hold spaces and parentheses.
func userSystem(stat string) (user, system time.Duration) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, 0
	}
	ticks := func(s string) time.Duration {
		n, _ := strconv.ParseUint(s, 10, 53)
		return time.Duration(n) * clockTick
	}
	return ticks(fields[11]), ticks(fields[12])
}

// readRSS returns the resident memory of a process in bytes.
func readRSS(pid int) (uint64, error) {
	statm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0, fmt.Errorf("bench: process %d: %w", pid, err)
	}
	n := parseNumbers(string(statm))
	if len(n) < 2 {
		return 0, fmt.Errorf("bench: process %d: statm %q", pid, statm)
	}
	return n[1] * uint64(os.Getpagesize()), nil
}

// ownsPort reports whether a process has a socket of a protocol, udp or tcp, with a local port, in
// the network namespace that it is in. known is false if that cannot be read.
func ownsPort(pid int, protocol string, port uint16) (owns, known bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	open := map[string]bool{}
	names, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return false, false
	}
	for _, name := range names {
		if link, err := os.Readlink(filepath.Join(dir, "fd", name.Name())); err == nil {
			open[link] = true
		}
	}
	for _, table := range []string{protocol, protocol + "6"} {
		text, err := os.ReadFile(filepath.Join(dir, "net", table))
		known = known || err == nil
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // slot, local, remote, ..., inode
			if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && open["socket:["+f[9]+"]"] {
				return true, true
			}
		}
	}
	return false, known
}

// processUse returns what a process used from one reading to a later one, in which
// so many datagrams arrived.
func processUse(pid int, a, b processSample, datagrams uint64) Process {
	p := Process{
		PID: pid, User: b.user - a.user, System: b.system - a.system, Wall: time.Duration(b.at - a.at),
		Datagrams: datagrams, RSS: b.rss, Threads: len(b.threads),
		Voluntary: b.voluntary - min(a.voluntary, b.voluntary), Involuntary: b.involuntary - min(a.involuntary, b.involuntary),
	}
	for tid, now := range b.threads {
		p.Run += now.run - a.threads[tid].run
		p.Wait += now.wait - a.threads[tid].wait
	}
	if datagrams > 0 {
		p.PerDatagram = float64(p.Run) / float64(datagrams)
	}
	return p
}

// systemSample is one reading of the counters of the machine.
type systemSample struct {
	cpu []uint64 // the line "cpu" of /proc/stat, in ticks
	udp map[string]uint64
}

// readSystem reads what there is: outside of Linux nothing.
func readSystem() (s systemSample) {
	if stat, err := os.ReadFile("/proc/stat"); err == nil {
		line, _, _ := strings.Cut(string(stat), "\n")
		s.cpu = parseNumbers(strings.TrimPrefix(line, "cpu"))
	}
	if snmp, err := os.ReadFile("/proc/net/snmp"); err == nil {
		s.udp = udpCounters(string(snmp))
	}
	return s
}

// udpCounters reads the two lines "Udp:" of /proc/net/snmp: names and values.
func udpCounters(snmp string) map[string]uint64 {
	var lines [][]string
	for line := range strings.Lines(snmp) {
		if rest, ok := strings.CutPrefix(line, "Udp:"); ok {
			lines = append(lines, strings.Fields(rest))
		}
	}
	counters := map[string]uint64{}
	if len(lines) != 2 || len(lines[0]) != len(lines[1]) {
		return counters
	}
	for i, name := range lines[0] {
		counters[name], _ = strconv.ParseUint(lines[1][i], 10, 64)
	}
	return counters
}

// systemUse returns what happened on the machine: times from a to b, drops from c to d.
func systemUse(a, b, c, d systemSample) System {
	ticks := func(columns ...int) (sum time.Duration) {
		for _, i := range columns {
			if i < len(a.cpu) && i < len(b.cpu) {
				sum += time.Duration(b.cpu[i]-min(a.cpu[i], b.cpu[i])) * clockTick
			}
		}
		return sum
	}
	udp := func(name string) uint64 { return d.udp[name] - min(c.udp[name], d.udp[name]) }
	return System{
		User: ticks(0, 1), Kernel: ticks(2), Idle: ticks(3, 4), SoftIRQ: ticks(5, 6), Steal: ticks(7),
		RcvbufErrors: udp("RcvbufErrors"), SndbufErrors: udp("SndbufErrors"),
		InErrors: udp("InErrors"), NoPorts: udp("NoPorts"),
	}
}

// parseNumbers are the leading parseNumbers of a line.
func parseNumbers(line string) (n []uint64) {
	for _, word := range strings.Fields(line) {
		v, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			break
		}
		n = append(n, v)
	}
	return n
}

// parseField returns the number in the line of text that begins with name.
func parseField(text []byte, name string) uint64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			n, _ := strconv.ParseUint(string(bytes.TrimSpace(rest)), 10, 64)
			return n
		}
	}
	return 0
}

// thisMachine describes the computer of this process. Fields that the platform does not
// have stay empty.
func thisMachine() Machine {
	host, _ := os.Hostname()
	m := Machine{
		Host: shortHash(host), CPU: cpuModel(), Cores: onlineCores(),
		Kernel:   readLine("/proc/sys/kernel/osrelease"),
		OS:       runtime.GOOS + "/" + runtime.GOARCH,
		Go:       runtime.Version(),
		Governor: readLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
	}
	files, _ := filepath.Glob("/sys/devices/system/cpu/vulnerabilities/*")
	for _, name := range files {
		if line := readLine(name); strings.HasPrefix(line, "Mitigation") {
			m.Mitigations = append(m.Mitigations, filepath.Base(name)+": "+line)
		}
	}
	m.ID = shortHash(host, m.CPU, strconv.Itoa(onlineCores()), m.Kernel, m.OS)
	return m
}

// onlineCores does not depend on how this process is pinned.
func onlineCores() int {
	info, err := os.ReadFile("/proc/cpuinfo")
	if n := bytes.Count(info, []byte("\nprocessor")); err == nil && n > 0 {
		return n + 1
	}
	return runtime.NumCPU()
}

func cpuModel() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func readLine(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line)
}

func shortHash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// observer reads the counters of processes and machine at both ends of the
// measured interval, and where the load on the control plane begins, and reports
// progress. It runs in a goroutine of its own, so that the generator does not open
// files during the run. Its fields belong to that goroutine until it has ended.
type observer struct {
	g                       *generator
	marks                   []int64 // times to read at, ns of sock.Now
	end, stop               int64   // of the generator, as planned
	readings                []reading
	before                  systemSample // the run
	reported                int64        // seconds
	err                     error
	serverPID, generatorPID int
}

// reading is what the counters were at a time.
type reading struct {
	arrived      uint64
	server, self processSample
	system       systemSample
}

func newObserver(g *generator, serverPID int) *observer {
	o := &observer{
		g: g, marks: []int64{g.measure, g.end}, end: g.end, stop: g.stop,
		serverPID: serverPID, generatorPID: os.Getpid(), before: readSystem(),
	}
	if g.cfg.Baseline > 0 {
		o.marks = []int64{g.measure, g.split, g.end}
	}
	return o
}

// Run works until done is closed, which has to be after the generator ended, or
// ctx ends. A run that is over before its time is read then.
func (o *observer) Run(ctx context.Context, done <-chan struct{}) {
	defer o.reportProgress() // of the seconds that were over after the last look
	for i, at := range o.marks {
		reached := o.wait(ctx, done, at)
		if reached || i > 0 {
			o.read()
		}
		if !reached {
			return
		}
	}
	o.wait(ctx, done, o.stop+int64(time.Second))
}

// wait returns true at the time, which is one of sock.Now, and tells of
// progress meanwhile. It returns false when the run is over before that time:
// a generator that misses nothing ends right after the measured interval.
func (o *observer) wait(ctx context.Context, done <-chan struct{}, until int64) bool {
	const step = int64(100 * time.Millisecond)
	for {
		now := sock.Now()
		if now >= until {
			return true
		}
		pause := until - now
		if o.g.cfg.Progress != nil {
			pause = min(pause, step)
		}
		select {
		case <-ctx.Done():
			return false
		case <-done:
			return sock.Now() >= until
		case <-time.After(time.Duration(pause)):
		}
		o.reportProgress()
	}
}

// reportProgress hands the seconds that are over to Config.Progress.
func (o *observer) reportProgress() {
	if o.g.cfg.Progress == nil {
		return
	}
	for ; o.reported < o.g.live.second.Load(); o.reported++ {
		o.g.cfg.Progress(o.g.secondAt(int(o.reported), o.end))
	}
}

func (o *observer) read() {
	r := reading{arrived: o.g.live.arrived.Load(), system: readSystem()}
	// without /proc there is no reading of this process
	r.self, _ = readProcess(o.generatorPID)
	if o.serverPID != 0 && o.err == nil {
		r.server, o.err = readProcess(o.serverPID)
		for _, pid := range o.g.cfg.ServerThreads {
			thread, err := readProcess(pid)
			o.err = errors.Join(o.err, err)
			maps.Copy(r.server.threads, thread.threads)
		}
	}
	o.readings = append(o.readings, r)
}

// serverUse is what the server serverUse from one reading to another; nothing if it was
// not measured or there are no such readings.
func (o *observer) serverUse(i, j int) Process {
	if o.serverPID == 0 || i < 0 || j >= len(o.readings) {
		return Process{}
	}
	a, b := &o.readings[i], &o.readings[j]
	return processUse(o.serverPID, a.server, b.server, b.arrived-a.arrived)
}

// drops counts the datagrams that the kernel has dropped on the sockets of the rig.
func (g *generator) drops() (n uint64) {
	for _, s := range g.rig.Sockets {
		n += s.Conn.Drops()
	}
	return n
}

// secondAt reports on second i, which must be over, of a run whose datagrams are
// due before end.
func (g *generator) secondAt(i int, end int64) Second {
	s := &g.seconds[i]
	first := g.firstSecond()
	from := first + int64(i)*1e9
	sec := Second{
		At:   i - int((g.measure-first)/1e9),
		Sent: s.sent, Delivered: s.delivered, Offered: s.sent,
	}
	sec.setLatency(s.latency)
	if g.schedule != nil {
		sec.Offered = g.schedule.before(min(from+1e9, end)) - g.schedule.before(min(from, end))
	}
	return sec
}

// setLatency sets the figures of what arrived in the second.
func (s *Second) setLatency(h *hdrhistogram.Histogram) {
	s.P50, s.P99, s.Max = quantile(h, 0, 50), quantile(h, 0, 99), quantile(h, 0, 100)
}

// firstSecond is when the first second began, in ns of sock.Now.
func (g *generator) firstSecond() int64 {
	warm := (int64(g.cfg.Warmup) + 1e9 - 1) / 1e9
	return g.measure - warm*1e9
}
