package bench

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

// clockTick is the unit of times in /proc: USER_HZ is 100 on every platform of
// Linux that Go has.
const clockTick = 10 * time.Millisecond

type processSample struct {
	at      int64 // ns of sock.Now
	threads map[int]procfs.ProcSchedstat
	allowed map[int][]uint64 // processors, by thread
	stat    procfs.ProcStat
}

func readProcess(pid int) (processSample, error) {
	s := processSample{at: sock.Now(), threads: map[int]procfs.ProcSchedstat{}, allowed: map[int][]uint64{}}
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return s, fmt.Errorf("bench: process %d: %w", pid, err)
	}
	for _, thread := range threads {
		run, err := thread.Schedstat()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return s, fmt.Errorf("bench: process %d: %w", pid, err)
		}
		s.threads[thread.PID] = run
		if status, err := thread.NewStatus(); err == nil {
			s.allowed[thread.PID] = status.CpusAllowedList
		}
	}
	s.stat, err = readStat(pid)
	return s, err
}

func readStat(pid int) (stat procfs.ProcStat, err error) {
	p, err := procfs.NewProc(pid)
	if err == nil {
		stat, err = p.Stat()
	}
	if err != nil {
		err = fmt.Errorf("bench: process %d: %w", pid, err)
	}
	return stat, err
}

func readRSS(pid int) (uint64, error) {
	stat, err := readStat(pid)
	return uint64(stat.ResidentMemory()), err
}

// ownsPort reports whether a process has a socket of a protocol, udp or tcp, with a local port, in
// the network namespace that it is in. known is false if that cannot be read.
func ownsPort(pid int, protocol string, port uint16) (owns, known bool) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false, false
	}
	open, err := p.FileDescriptorTargets()
	if err != nil {
		return false, false
	}
	for _, table := range []string{protocol, protocol + "6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		known = known || err == nil
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // slot, local, remote, ..., inode
			if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && slices.Contains(open, "socket:["+f[9]+"]") {
				return true, true
			}
		}
	}
	return false, known
}

func processUse(pid int, a, b processSample, datagrams uint64) process {
	p := process{
		PID: pid, Wall: time.Duration(b.at - a.at), Datagrams: datagrams, RSS: uint64(b.stat.ResidentMemory()), Threads: len(b.threads),
		User:   time.Duration(b.stat.UTime-a.stat.UTime) * clockTick,
		System: time.Duration(b.stat.STime-a.stat.STime) * clockTick,
	}
	for tid, now := range b.threads {
		p.Run += time.Duration(now.RunningNanoseconds - a.threads[tid].RunningNanoseconds)
		p.Wait += time.Duration(now.WaitingNanoseconds - a.threads[tid].WaitingNanoseconds)
	}
	if datagrams > 0 {
		p.PerDatagram = float64(p.Run) / float64(datagrams)
	}
	return p
}

// boundTo returns the only processor on which the busiest thread of a process may run, if it is only one.
func boundTo(a, b processSample) (cpu uint64, bound bool) {
	most := uint64(0)
	for tid, now := range b.threads {
		run := now.RunningNanoseconds - a.threads[tid].RunningNanoseconds
		if allowed := b.allowed[tid]; run > most {
			if most, bound = run, len(allowed) == 1; bound {
				cpu = allowed[0]
			}
		}
	}
	return cpu, bound
}

type systemSample struct {
	cpu procfs.CPUStat // s
	udp procfs.Udp
}

func readSystem() (s systemSample) {
	if fs, err := procfs.NewDefaultFS(); err == nil {
		stat, _ := fs.Stat()
		s.cpu = stat.CPUTotal
	}
	if self, err := procfs.Self(); err == nil {
		snmp, _ := self.Snmp()
		s.udp = snmp.Udp
	}
	return s
}

// systemUse returns what happened on the machine: times from a to b, drops from c to d.
func systemUse(a, b, c, d systemSample) system {
	span := func(from, to float64) time.Duration {
		return time.Duration(max(to-from, 0) * float64(time.Second)).Round(clockTick)
	}
	count := func(from, to *float64) uint64 {
		if from == nil || to == nil {
			return 0
		}
		return uint64(max(*to-*from, 0))
	}
	return system{
		User: span(a.cpu.User+a.cpu.Nice, b.cpu.User+b.cpu.Nice), Kernel: span(a.cpu.System, b.cpu.System),
		Idle: span(a.cpu.Idle+a.cpu.Iowait, b.cpu.Idle+b.cpu.Iowait), Steal: span(a.cpu.Steal, b.cpu.Steal),
		SoftIRQ:      span(a.cpu.IRQ+a.cpu.SoftIRQ, b.cpu.IRQ+b.cpu.SoftIRQ),
		RcvbufErrors: count(c.udp.RcvbufErrors, d.udp.RcvbufErrors), SndbufErrors: count(c.udp.SndbufErrors, d.udp.SndbufErrors),
		InErrors: count(c.udp.InErrors, d.udp.InErrors), NoPorts: count(c.udp.NoPorts, d.udp.NoPorts),
	}
}

// thisMachine leaves fields empty that the platform does not have.
func thisMachine() Machine {
	host, _ := os.Hostname()
	model, cores := readProcessors()
	m := Machine{
		CPU: model, Cores: cores,
		Kernel:   readLine("/proc/sys/kernel/osrelease"),
		OS:       runtime.GOOS + "/" + runtime.GOARCH,
		Go:       runtime.Version(),
		Governor: readLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
	}
	m.ID = shortHash(host, m.CPU, strconv.Itoa(cores), m.Kernel, m.OS)
	return m
}

// readProcessors does not depend on how this process is pinned.
func readProcessors() (model string, cores int) {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		switch name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) {
		case "processor":
			cores++
		case "model name":
			model = cmp.Or(model, strings.TrimSpace(value))
		}
	}
	return model, cmp.Or(cores, runtime.NumCPU())
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
