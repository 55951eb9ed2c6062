package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/sock"
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
		n := numbers(string(stat))
		if err != nil || len(n) < 2 {
			return s, fmt.Errorf("bench: process %d: schedstat %q: %w", pid, stat, err)
		}
		s.threads[task.Name()] = threadSample{time.Duration(n[0]), time.Duration(n[1])}
		status, err := os.ReadFile(filepath.Join(dir, "task", task.Name(), "status"))
		if err == nil {
			s.voluntary += field(status, "voluntary_ctxt_switches:")
			s.involuntary += field(status, "nonvoluntary_ctxt_switches:")
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
	n := numbers(string(statm))
	if len(n) < 2 {
		return 0, fmt.Errorf("bench: process %d: statm %q", pid, statm)
	}
	return n[1] * uint64(os.Getpagesize()), nil
}

// between returns what a process used from one reading to a later one, in which
// so many datagrams arrived.
func between(pid int, a, b processSample, datagrams uint64) Process {
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
		s.cpu = numbers(strings.TrimPrefix(line, "cpu"))
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

// since returns what happened on the machine: times from a to b, drops from c to d.
func since(a, b, c, d systemSample) System {
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

// numbers are the leading numbers of a line.
func numbers(line string) (n []uint64) {
	for _, word := range strings.Fields(line) {
		v, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			break
		}
		n = append(n, v)
	}
	return n
}

// field returns the number in the line of text that begins with name.
func field(text []byte, name string) uint64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			n, _ := strconv.ParseUint(string(bytes.TrimSpace(rest)), 10, 64)
			return n
		}
	}
	return 0
}
