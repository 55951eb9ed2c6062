package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type unitLine struct{ section, key, value string }

// unitKeys are the settings of systemd 247 and later that our units use. systemd
// only warns about a misspelt key, and the hardening would be missing.
var unitKeys = map[string][]string{
	"Unit":    {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
	"Install": {"WantedBy"},
	"Service": {
		"Type", "Environment", "EnvironmentFile", "ExecStart", "ExecReload", "Restart", "RestartPreventExitStatus", "RestartSec",
		"KillSignal", "KillMode", "TimeoutStopSec", "DynamicUser", "SupplementaryGroups", "StateDirectory",
		"StateDirectoryMode", "RuntimeDirectory", "RuntimeDirectoryMode", "RuntimeDirectoryPreserve", "UMask", "CapabilityBoundingSet",
		"AmbientCapabilities", "NoNewPrivileges",
		"ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables",
		"ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups", "ProtectClock", "ProtectHostname",
		"ProtectProc", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID",
		"LockPersonality", "MemoryDenyWriteExecute", "SystemCallArchitectures", "SystemCallFilter",
		"SystemCallErrorNumber", "RemoveIPC", "KeyringMode", "LimitNOFILE", "LimitCORE", "OOMPolicy", "MemoryMax",
	},
}

func units(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("systemd/*.service")
	if err != nil || len(names) != 3 {
		t.Fatalf("units: %v, %v", names, err)
	}
	return names
}

func parseUnit(t *testing.T, name string) (all []unitLine) {
	t.Helper()
	section := ""
	for line := range strings.Lines(strings.ReplaceAll(read(t, name), "\\\n", " ")) {
		line = strings.TrimSpace(line)
		switch key, value, ok := strings.Cut(line, "="); {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		case !ok || !slices.Contains(unitKeys[section], key):
			t.Errorf("%s: %q is no setting of [%s] that is known here", name, line, section)
		default:
			all = append(all, unitLine{section, key, strings.Join(strings.Fields(value), " ")})
		}
	}
	return all
}

func values(lines []unitLine, key string) (all []string) {
	for _, l := range lines {
		if l.key == key {
			all = append(all, l.value)
		}
	}
	return all
}

func TestUnits(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"DynamicUser": "yes", "SupplementaryGroups": "ferry", "ProtectSystem": "strict",
		"NoNewPrivileges": "yes", "UMask": "0077",
		"SystemCallErrorNumber": "EPERM", "MemoryDenyWriteExecute": "yes", "LimitCORE": "0", "KillSignal": "SIGTERM",
		"KillMode": "mixed", "Restart": "on-failure", "RestartPreventExitStatus": strconv.Itoa(exitUsage),
	}
	for _, name := range units(t) {
		lines := parseUnit(t, name)
		for key, value := range want {
			if got := values(lines, key); len(got) != 1 || got[0] != value {
				t.Errorf("%s: %s is %q, want %q", name, key, got, value)
			}
		}
		// A relay may load and attach the program in the kernel, and listen on port 80 for ACME; nothing else has
		// a privilege.
		capabilities, filter := "", []string{"@system-service", "~@privileged @resources"}
		if !strings.HasSuffix(name, "ferry-api.service") {
			capabilities, filter = "CAP_BPF CAP_NET_ADMIN CAP_PERFMON CAP_NET_BIND_SERVICE", append(filter, "bpf")
		}
		for _, key := range []string{"CapabilityBoundingSet", "AmbientCapabilities"} {
			if got := values(lines, key); !slices.Equal(got, []string{capabilities}) {
				t.Errorf("%s: %s is %q, want %q", name, key, got, capabilities)
			}
		}
		if got := values(lines, "SystemCallFilter"); !slices.Equal(got, filter) {
			t.Errorf("%s: filter %q", name, got)
		}
		if got := values(lines, "ExecReload"); len(got) == 0 || got[len(got)-1] != "/bin/kill -HUP $MAINPID" {
			t.Errorf("%s: reload by %q, want SIGHUP", name, got)
		}
		role := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "ferry-"), ".service")
		if start := values(lines, "ExecStart"); len(start) != 1 || !strings.HasPrefix(start[0], "/usr/local/bin/ferry "+role+" ") {
			t.Errorf("%s starts %q", name, start)
		}
		checkFilesLimit(t, name, role, lines)
		kind := "exec"
		if role == "serve" {
			kind = "notify" // by which ferry ctl upgrade names the process that takes over
		}
		if got := values(lines, "Type"); !slices.Equal(got, []string{kind}) {
			t.Errorf("%s: Type is %q, want %q", name, got, kind)
		}
		state := values(lines, "StateDirectory")
		if keeps := role != "api"; keeps != (len(state) == 1 && "/var/lib/"+state[0] == defaultOf(t, "serve", "state-dir")) {
			t.Errorf("%s: state directories %q", name, state)
		}
		// The files of a running relay are on a tmpfs, and stay there between two runs.
		runtime := values(lines, "RuntimeDirectory")
		if keeps := role != "api"; keeps != (len(runtime) == 1 && slices.Contains(values(lines, "Environment"),
			"FERRY_RUNTIME_DIR=/run/"+runtime[0]) &&
			slices.Equal(values(lines, "RuntimeDirectoryPreserve"), []string{"yes"})) {
			t.Errorf("%s: runtime directories %q", name, runtime)
		}
	}
}

// exitUsage is the exit code of the binary for invalid settings.
const exitUsage = 2

func TestExitCode(t *testing.T) {
	t.Parallel()
	if out, code := run(t, "serve", "--udp", "nonsense"); code != exitUsage {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func defaultOf(t *testing.T, command, flag string) string {
	t.Helper()
	help, _ := run(t, command, "--help-all")
	_, entry, _ := strings.Cut(help, "\n   --"+flag+" ")
	entry, _, _ = strings.Cut(entry, "\n   --")
	m := regexp.MustCompile(`\(default ([^;)]*)`).FindStringSubmatch(strings.Join(strings.Fields(entry), " "))
	if m == nil {
		t.Errorf("the help of %s shows no default of --%s", command, flag)
		return ""
	}
	return m[1]
}

func checkFilesLimit(t *testing.T, name, role string, lines []unitLine) {
	t.Helper()
	need := 1024 // sockets, files, connections between machines
	for _, flag := range []string{"max-http-connections", "max-websockets"} {
		n, err := strconv.Atoi(defaultOf(t, "serve", flag))
		if err != nil {
			t.Error(err)
		}
		need += n
	}
	limit := strings.Join(values(lines, "LimitNOFILE"), " ")
	if n, err := strconv.Atoi(limit); err != nil || n < need {
		t.Errorf("%s: %q files, and %s may need %d", name, limit, role, need)
	}
}

// TestSystemd checks that systemd-analyze has no warnings about the units and a
// low exposure level.
func TestSystemd(t *testing.T) {
	t.Parallel()
	path, dir := tool(t, "systemd-analyze"), t.TempDir()
	for _, name := range units(t) {
		unit := filepath.Join(dir, filepath.Base(name))
		text := strings.ReplaceAll(read(t, name), "/usr/local/bin/ferry", binary) // systemd-analyze requires an existing binary.
		if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(path, "verify", unit).CombinedOutput(); err != nil || len(out) != 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		// systemd 252 reports 1.5 of 10, for network access and the host's processes.
		out, err := exec.Command(path, "security", "--offline=true", "--threshold=20", "--no-pager", unit).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestSysctl: every line is a setting with a number and a comment above it.
func TestSysctl(t *testing.T) {
	t.Parallel()
	line, before, n := regexp.MustCompile(`^(net\.[a-z0-9_.]+) = [0-9]+$`), "", 0
	for text := range strings.Lines(read(t, "sysctl/90-ferry.conf")) {
		text = strings.TrimSuffix(text, "\n")
		if text != "" && text[0] != '#' {
			m := line.FindStringSubmatch(text)
			if n++; m == nil || before == "" {
				t.Errorf("%q: no setting with a reason", text)
			} else if path := "/proc/sys/" + strings.ReplaceAll(m[1], ".", "/"); exists("/proc/sys/net/ipv4") && !exists(path) && !hostOnly[m[1]] {
				t.Errorf("this kernel has no %s", path)
			}
		}
		before = text
	}
	if n < 6 {
		t.Errorf("%d settings", n)
	}
}

// hostOnly are settings that do not exist in a separate network namespace.
var hostOnly = map[string]bool{
	"net.core.rmem_max": true, "net.core.wmem_max": true, "net.core.netdev_max_backlog": true,
	"net.core.netdev_budget": true, "net.core.netdev_budget_usecs": true,
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
