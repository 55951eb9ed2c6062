package bench

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// ThisMachine describes the computer that the caller runs on. What the platform
// does not tell stays empty.
func ThisMachine() Machine {
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
