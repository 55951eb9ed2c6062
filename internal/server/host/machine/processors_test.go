package machine

import (
	"os"
	"slices"
	"testing"
	"testing/fstest"
)

func files(all map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, content := range all {
		root[name] = &fstest.MapFile{Data: []byte(content + "\n")}
	}
	return root
}

func TestReadProcessors(t *testing.T) {
	const online = "sys/devices/system/cpu/online"
	for _, c := range []struct {
		name  string
		files map[string]string
		limit int // of 64
		why   string
	}{
		{"nothing is known", nil, 64, "Go counts these processors"},
		{"a machine", map[string]string{online: "0-63", "proc/self/status": "Name:\tferry\nCpus_allowed_list:\t0-63"},
			64, "the machine has 64 processors, and no limit is set"},
		{"affinity", map[string]string{online: "0-63", "proc/self/status": "Cpus_allowed_list:\t0-3,8"},
			64, "the process may run on 5 of 64 processors"},
		{"a container, version 2", map[string]string{online: "0-63", "proc/self/status": "Cpus_allowed_list:\t0-63",
			"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"},
			2, "the CPU quota of the cgroup is 2 of 64 processors"},
		{"no quota", map[string]string{online: "0-63", "proc/self/status": "Cpus_allowed_list:\t0-63",
			"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"},
			64, "the machine has 64 processors, and no limit is set"},
		{"a part of a processor", map[string]string{online: "0-63", "proc/self/status": "Cpus_allowed_list:\t0-63",
			"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"},
			3, "the CPU quota of the cgroup is 2.5 of 64 processors"},
		{"less than one", map[string]string{online: "0-63", "proc/self/status": "Cpus_allowed_list:\t0-63",
			"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"},
			2, "the CPU quota of the cgroup is 0.5 of 64 processors"},
		{"a lower quota above", map[string]string{online: "0-63", "proc/self/status": "Cpus_allowed_list:\t0-63",
			"proc/self/cgroup":                                "0::/games.slice/ferry.service",
			"sys/fs/cgroup/games.slice/cpu.max":               "400000 100000",
			"sys/fs/cgroup/games.slice/ferry.service/cpu.max": "max 100000"},
			4, "the CPU quota of the cgroup is 4 of 64 processors"},
		{"version 1", map[string]string{online: "0-63", "proc/self/status": "Cpus_allowed_list:\t0-63",
			"proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n4:cpuset:/",
			"sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "300000", "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000"},
			3, "the CPU quota of the cgroup is 3 of 64 processors"},
		{"a quota above the affinity", map[string]string{online: "0-63", "proc/self/status": "Cpus_allowed_list:\t0-1",
			"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "400000 100000"},
			4, "the process may run on 2 of 64 processors"},
		{"damage", map[string]string{online: "zero", "proc/self/status": "Cpus_allowed_list:\t-", "proc/self/cgroup": "x",
			"sys/fs/cgroup/cpu.max": "1"}, 64, "Go counts these processors"},
	} {
		p := ReadProcessors(files(c.files))
		if p.Limit(64) != c.limit || p.String() != c.why {
			t.Errorf("%s: %d, %q; want %d, %q", c.name, p.Limit(64), p, c.limit, c.why)
		}
		if !p.Equal(ReadProcessors(files(c.files))) || p.Equal(Processors{Online: 99}) {
			t.Errorf("%s: Equal is wrong", c.name)
		}
	}
}

func TestThisMachine(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc: ", err)
	}
	if p := ReadProcessors(os.DirFS("/")); p.Online < 1 || len(p.Allowed) < 1 || len(p.Allowed) > p.Online {
		t.Errorf("%+v", p)
	}
}

func TestCPUs(t *testing.T) {
	for _, c := range []struct {
		list string
		want []int
		text string
	}{
		{"", nil, ""}, {"0", []int{0}, "0"}, {"0-3,8", []int{0, 1, 2, 3, 8}, "0-3,8"},
		{" 3 , 1-2", []int{3, 1, 2}, "1-3"}, {"5-5", []int{5}, "5"},
	} {
		got, err := ParseCPUs(c.list)
		if err != nil || !slices.Equal(got, c.want) || FormatCPUs(got) != c.text {
			t.Errorf("%q: %v, %v, %q", c.list, got, err, FormatCPUs(got))
		}
	}
	for _, bad := range []string{"x", "1-", "-1", "3-2", "1,1", "0-2,2", "8192", "1,,2", "0-99999999999"} {
		if got, err := ParseCPUs(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	for mask, want := range map[string]string{
		"3": "0-1", "00000000,00000001": "0", "80000000,00000000": "63", "ff,ffffffff": "0-39", "": "", "x": "", "0": "",
	} {
		if got := FormatCPUs(parseMask(mask)); got != want {
			t.Errorf("mask %q: %q, want %q", mask, got, want)
		}
	}
}
