package memory

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/fstest"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestReadLimit(t *testing.T) {
	const meminfo = "MemTotal:        4194304 kB\nMemFree:          100000 kB\n"
	for _, c := range []struct {
		name  string
		soft  int64
		files fstest.MapFS
		want  Limit
	}{
		{"nothing is known", 0, fstest.MapFS{}, Limit{}},
		{"machine", 0, fstest.MapFS{"proc/meminfo": file(meminfo)}, Limit{4 << 30, "machine"}},
		{"version 2", 0, fstest.MapFS{
			"proc/meminfo":                                        file(meminfo),
			"proc/self/cgroup":                                    file("0::/system.slice/ferry.service\n"),
			"sys/fs/cgroup/system.slice/memory.max":               file("max\n"),
			"sys/fs/cgroup/system.slice/ferry.service/memory.max": file("268435456\n"),
		}, Limit{256 << 20, "cgroup"}},
		{"version 2, the group above is smaller", 0, fstest.MapFS{
			"proc/self/cgroup":                       file("0::/pod/container\n"),
			"sys/fs/cgroup/pod/memory.max":           file("134217728\n"),
			"sys/fs/cgroup/pod/container/memory.max": file("268435456\n"),
		}, Limit{128 << 20, "cgroup"}},
		{"version 2, in a container", 0, fstest.MapFS{
			"proc/self/cgroup":         file("0::/kubepods/pod1/c1\n"),
			"sys/fs/cgroup/memory.max": file("268435456\n"),
		}, Limit{256 << 20, "cgroup"}},
		{"version 1", 0, fstest.MapFS{
			"proc/meminfo":     file(meminfo),
			"proc/self/cgroup": file("9:name=systemd:/\n5:cpu,memory:/docker/x\n1:cpu:/\n0::/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          file("9223372036854771712\n"),
			"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": file("67108864\n"),
		}, Limit{64 << 20, "cgroup"}},
		{"version 1 without a limit", 0, fstest.MapFS{
			"proc/meminfo":     file(meminfo),
			"proc/self/cgroup": file("4:memory:/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, Limit{4 << 30, "machine"}},
		{"operator's, below the group's", 100 << 20, fstest.MapFS{
			"proc/self/cgroup":         file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("268435456\n"),
		}, Limit{100 << 20, "GOMEMLIMIT"}},
		{"operator's, above the group's", 300 << 20, fstest.MapFS{
			"proc/self/cgroup":         file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("268435456\n"),
		}, Limit{256 << 20, "cgroup"}},
		{"rubbish", 0, fstest.MapFS{
			"proc/meminfo":             file("MemTotal: many kB\n"),
			"proc/self/cgroup":         file("0\n::\n0::/../..\n"),
			"sys/fs/cgroup/memory.max": file("-5\n"),
		}, Limit{}},
	} {
		if got := ReadLimit(c.files, c.soft); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestRoom: what may still be taken is that of the tightest group, or of the machine.
func TestRoom(t *testing.T) {
	const meminfo = "MemTotal:        4194304 kB\nMemAvailable:     102400 kB\n"
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		want  Limit
	}{
		{"nothing is known", fstest.MapFS{}, Limit{}},
		{"machine", fstest.MapFS{"proc/meminfo": file(meminfo)}, Limit{100 << 20, "machine"}},
		{"version 2, the group above is tighter", fstest.MapFS{
			"proc/meminfo":                               file(meminfo),
			"proc/self/cgroup":                           file("0::/pod/container\n"),
			"sys/fs/cgroup/pod/memory.max":               file("104857600\n"),
			"sys/fs/cgroup/pod/memory.current":           file("83886080\n"),
			"sys/fs/cgroup/pod/memory.stat":              file("anon 1\ninactive_file 1048576\nactive_file 2097152\nslab_reclaimable 1048576\nx y\n"),
			"sys/fs/cgroup/pod/container/memory.max":     file("104857600\n"),
			"sys/fs/cgroup/pod/container/memory.current": file("41943040\n"),
		}, Limit{24 << 20, "cgroup"}},
		{"version 1, above its limit", fstest.MapFS{
			"proc/meminfo":     file(meminfo),
			"proc/self/cgroup": file("4:memory:/x\n"),
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": file("10485760\n"),
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes": file("12582912\n"),
			"sys/fs/cgroup/memory/x/memory.stat":           file("inactive_file 99999999\ntotal_inactive_file 1048576\n"),
		}, Limit{-1 << 20, "cgroup"}},
	} {
		if got := readRoom(c.files); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestProcessLimit: this process has a limit that it can be within.
func TestProcessLimit(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	if l := ProcessLimit(); l.Bytes < used() || l.Bytes > unlimited {
		t.Errorf("limit %+v, used %d", l, used())
	}
	t.Setenv(softEnv, "64MiB")
	before := debug.SetMemoryLimit(64 << 20)
	defer debug.SetMemoryLimit(before)
	if l := ProcessLimit(); l != (Limit{64 << 20, softEnv}) {
		t.Errorf("with %s=%s: %+v", softEnv, os.Getenv(softEnv), l)
	}
	soften(1 << 20)
	if now := debug.SetMemoryLimit(-1); now != 64<<20 {
		t.Errorf("the operator's limit was changed to %d", now)
	}
}

func TestUsed(t *testing.T) {
	runtime.GC()
	before := used()
	kept := make([]byte, 64*mebi)
	for i := range kept {
		kept[i] = 1
	}
	runtime.GC()
	with := used()
	runtime.KeepAlive(kept)
	kept = nil
	runtime.GC()
	if after := used(); with-before < 60*mebi || with-after < 60*mebi {
		t.Errorf("before %d, with 64 MiB more %d, without %d MiB", before/mebi, with/mebi, after/mebi)
	}
}

func TestFits(t *testing.T) {
	transports := Transports{Sessions: 65_536, WebSockets: 4096, Queue: 256 << 10}
	for _, c := range []struct {
		limit, buffers int64
		transports     Transports
		least, most    int
	}{
		{256 * mebi, 16 * mebi, Transports{}, 300_000, 400_000},
		{1024 * mebi, 16 * mebi, Transports{}, 1_500_000, 2_000_000},
		{64 * mebi, 512 * mebi, Transports{}, 25_000, 35_000},
		{256 * mebi, 16 * mebi, Transports{Sessions: 65_536}, 55_000, 65_535},
		{1024 * mebi, 16 * mebi, Transports{Sessions: 65_536}, 1_250_000, 1_500_000},
		{1024 * mebi, 16 * mebi, Transports{WebSockets: 1000, Queue: 256 << 10}, 900_000, 1_100_000},
		{256 * mebi, 16 * mebi, transports, 20_000, 25_000},
		{4096 * mebi, 16 * mebi, transports, 3_500_000, 4_500_000},
	} {
		n := Fits(c.limit, c.buffers, c.transports)
		if n < c.least || n > c.most {
			t.Errorf("%d MiB, %+v: %d allocations", c.limit/mebi, c.transports, n)
		}
		need := int64(n)*perAllocation + int64(min(n, c.transports.Sessions))*perSession
		if need > calm(c.limit) {
			t.Errorf("%d MiB, %+v: %d allocations take %d MiB and would be refused for ever", c.limit/mebi, c.transports, n, need/mebi)
		}
	}
}

// TestFitsFalls: whatever players may take besides, fewer allocations fit, and
// never more.
func TestFitsFalls(t *testing.T) {
	const limit = 2048 * mebi
	last := Fits(limit, 16*mebi, Transports{})
	for _, w := range []Transports{
		{Sessions: 1000},
		{Sessions: 100_000},
		{Sessions: 100_000, WebSockets: 100},
		{Sessions: 100_000, WebSockets: 100, Queue: 128 << 10},
		{Sessions: 100_000, WebSockets: 1000, Queue: 128 << 10},
		{Sessions: 4_000_000, WebSockets: 1000, Queue: 128 << 10},
	} {
		n := Fits(limit, 16*mebi, w)
		if n >= last || n == 0 {
			t.Errorf("%+v: %d fit, %d with less", w, n, last)
		}
		last = n
	}
}
