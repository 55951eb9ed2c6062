// Package c holds the client in C, ferry_relay.h, and its tests, which run programs made by gcc and clang.
package c

import (
	"cmp"
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(12) // They wait for clients and clocks.
	var err error
	if programs.dir, err = os.MkdirTemp("", "ferry-c-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(programs.dir)
	os.Exit(code)
}

// compilers are the commands, and the Debian packages that have them.
var compilers = [][2]string{{"gcc", "gcc"}, {"clang-14", "clang-14 libclang-rt-14-dev"}}

var long = flag.Bool("long", false, "every standard of C++, and what takes up to 30 s")

// needLong skips what takes too long for each run of go test.
func needLong(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skip("NOT TESTED: it takes long; make clients does it")
	}
}

// strict are the flags under which the client has no warning.
var strict = []string{"-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I."}

func forEachCompiler(t *testing.T, test func(t *testing.T, cc string)) {
	t.Parallel()
	for _, c := range compilers {
		t.Run(c[0], func(t *testing.T) {
			t.Parallel()
			test(t, testkit.Program(t, c[0], c[1]))
		})
	}
}

// object compiles a source in C.
func object(t *testing.T, cc, source string, flags ...string) string {
	t.Helper()
	testkit.Input(t, "ferry_relay.h", "ferry_relay.c")
	file := filepath.Join(t.TempDir(), "object.o")
	runCompiler(t, cc, slices.Concat([]string{"-o", file, "-std=c99", "-c", source}, strict, flags))
	return file
}

func runCompiler(t *testing.T, compiler string, args []string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", compiler, strings.Join(args, " "), err, out)
	}
}

// programs are what sanitized has compiled.
var programs struct {
	dir   string   // TestMain makes and removes it
	files sync.Map // by compiler and source, a func that compiles once
}

// sanitized makes a program that ends at the first fault of memory or undefined behaviour, once for each compiler.
func sanitized(t *testing.T, cc, source string) string {
	t.Helper()
	testkit.Input(t, "ferry_relay.h", "ferry_relay.c", source)
	file := filepath.Join(programs.dir, filepath.Base(cc)+"-"+filepath.Base(source)+".out")
	compile, _ := programs.files.LoadOrStore(file, sync.OnceValue(func() error {
		args := append([]string{"-o", file, "-std=c99", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
			"ferry_relay.c", source}, strict...)
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w\n%s", cc, strings.Join(args, " "), err, out)
		}
		return nil
	}))
	if err := compile.(func() error)(); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestWarnings: there are none with optimisation, nor with the smallest bound of peers.
func TestWarnings(t *testing.T) {
	forEachCompiler(t, func(t *testing.T, cc string) {
		object(t, cc, "ferry_relay.c", "-O2", "-Wconversion")
		object(t, cc, "ferry_relay.c", "-O2", "-DFERRY_MAX_PEERS=1")
	})
}

// TestReadme: its example compiles.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n```c\n")
	example, _, ok := strings.Cut(rest, "\n```\n")
	if !ok {
		t.Fatal("no example in README.md")
	}
	file := filepath.Join(t.TempDir(), "readme.c")
	if err := os.WriteFile(file, []byte(example+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	forEachCompiler(t, func(t *testing.T, cc string) { object(t, cc, file, "-O2") })
}

// TestCPlusPlus: a program in C++, of any standard from 1998 to 2020, includes the header and links the client as it is
// compiled by the C compiler or as C++, or includes the source, as a file of an Unreal module does.
func TestCPlusPlus(t *testing.T) {
	t.Parallel()
	testkit.Input(t, "ferry_relay.h", "ferry_relay.c")
	const main = `
int main() {
	static ferry_session s;
	static ferry_ticket t;
	t.data_len = 1;
	return ferry_init(&s, &t, 0, 0) == 1 ? 0 : 1;
}
`
	dir := t.TempDir()
	program, module := filepath.Join(dir, "main.cc"), filepath.Join(dir, "module.cpp")
	for file, include := range map[string]string{program: "ferry_relay.h", module: "ferry_relay.c"} {
		if err := os.WriteFile(file, []byte("#include \""+include+"\""+main), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inC := object(t, testkit.Program(t, "gcc", "gcc"), "ferry_relay.c")
	for _, c := range [][2]string{{"g++", "g++"}, {"clang++-14", "clang-14"}} {
		compiler := testkit.Program(t, c[0], c[1])
		for _, standard := range []string{"98", "11", "14", "17", "20"} {
			t.Run(c[0]+"/"+standard, func(t *testing.T) {
				if standard != "98" && standard != "20" {
					needLong(t)
				}
				t.Parallel()
				flags := append(slices.Clone(strict), "-std=c++"+standard, "-fno-exceptions", "-fno-rtti", "-Wshadow", "-Wundef", "-Wconversion")
				for name, inputs := range map[string][]string{
					"object": {program, inC}, "source": {program, "-x", "c++", "ferry_relay.c"}, "module": {module},
				} {
					file := filepath.Join(t.TempDir(), name)
					runCompiler(t, compiler, slices.Concat(flags, []string{"-o", file}, inputs))
					if err := exec.CommandContext(t.Context(), file).Run(); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
	}
}

// TestMaxContent: by default the client sends what a relay forwards by default.
func TestMaxContent(t *testing.T) {
	header, err := os.ReadFile("ferry_relay.h")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("#define FERRY_MAX_CONTENT %d\n", proto.DefaultMaxContent); !strings.Contains(string(header), want) {
		t.Errorf("ferry_relay.h lacks %q", want)
	}
}

// TestVectors: each golden packet has the fields that its inputs say, is encoded to the same bytes, and is
// refused with a byte less or more.
func TestVectors(t *testing.T) {
	var lines strings.Builder
	var names, want []string
	vectors, qos := clienttest.Vectors(t, "../../docs/vectors.json")
	for _, v := range vectors {
		fmt.Fprintln(&lines, v.Packet, v.Key)
		zero := strings.Repeat("0", 32)
		if v.Name == "rejected-minimal" { // The client writes the form with ids.
			v.Again += zero + zero
		}
		names = append(names, v.Name)
		want = append(want, strings.Join([]string{fmt.Sprint(v.Type), cmp.Or(v.ID, zero), cmp.Or(v.To, zero), v.Number, "0", v.Code,
			cmp.Or(v.Data, "-"), v.Again}, " "))
	}
	fmt.Fprintln(&lines, qos["qos-request"], vectors[0].Key)
	fmt.Fprintln(&lines, qos["qos-response"], vectors[0].Key)
	names = append(names, "qos-request", "qos-response")
	want = append(want, "qos "+qos["qos-request"], "qos 3 48879 1700000000000")
	forEachCompiler(t, func(t *testing.T, cc string) {
		cmd := exec.CommandContext(t.Context(), sanitized(t, cc, "testdata/test.c"), "vectors")
		cmd.Stdin = strings.NewReader(lines.String())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		got := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(got) != len(want) {
			t.Fatalf("%d lines for %d vectors:\n%s", len(got), len(want), out)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s:\n%s, want\n%s", names[i], got[i], want[i])
			}
		}
	})
}

// TestSession: the state machine against a scripted relay and clock, and random datagrams and calls.
func TestSession(t *testing.T) {
	forEachCompiler(t, func(t *testing.T, cc string) {
		program := sanitized(t, cc, "testdata/test.c")
		for _, args := range [][]string{{"rules"}, {"fuzz", "1", "100000"}, {"fuzz", fmt.Sprint(time.Now().UnixNano()), "100000"}} {
			out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
			if err != nil {
				t.Errorf("%q: %v\n%s", args, err, out)
			}
		}
	})
}

// play starts a host or a joiner, whose datagrams pass the gate if there is one.
func play(t *testing.T, program string, r *enginetest.Relay, res alloc.Reservation, isHost bool, g *clienttest.Gate) *clienttest.Program {
	t.Helper()
	cred := r.Credentials(res)
	if g != nil {
		g.SetRelay(cred.Relay)
		cred.Relay = g.Addr()
	}
	fields := [][]byte{cred.ID[:], cred.Key, cred.ConnectionData, cred.HostConnectionData}
	if isHost {
		fields[3] = nil
	}
	cmd := exec.CommandContext(t.Context(), program, cred.Relay.Addr().String(), fmt.Sprint(cred.Relay.Port()))
	cmd.Stderr = os.Stderr
	p := clienttest.Start(t, cmd)
	p.Ignores = func(line string) bool { return line == "silent -1 " || line == "bound -1 " } // The machine may be slow.
	for _, f := range fields {
		p.Do(base64.StdEncoding.EncodeToString(f))
	}
	return p
}

func end(t *testing.T, p *clienttest.Program) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// ports are the source ports of the bound allocations.
func ports(t *testing.T, r *enginetest.Relay) map[proto.AllocationID]uint16 {
	t.Helper()
	list, _, err := r.Allocations(t.Context(), engine.Filter{Bound: true}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[proto.AllocationID]uint16{}
	for _, a := range list {
		ports[a.ID] = a.Endpoint.Port()
	}
	return ports
}

// TestPlay: a host and a joiner in C meet through a relay and move to new sockets; then the host goes.
func TestPlay(t *testing.T) {
	forEachCompiler(t, func(t *testing.T, cc string) {
		program := sanitized(t, cc, "example.c")
		relay := enginetest.Start(t, engine.Config{})
		reserved := relay.Host("alice", 2)
		host := play(t, program, relay, reserved, true, nil)
		host.Expect("bound -1")
		joining := relay.Joiner("bob", reserved.ID)
		joiner := play(t, program, relay, joining, false, nil)
		joiner.Expect("connected -1")
		talk := func(what string) {
			t.Helper()
			joiner.Do(what + " from the joiner")
			host.Expect("message -1 " + what + " from the joiner")
			host.Do(what + " from the host")
			joiner.Expect("message -1 " + what + " from the host")
		}
		talk("hello")
		for _, move := range []struct {
			name, command string
			player        *clienttest.Program
			id            proto.AllocationID
		}{{"joiner", "/roam", joiner, joining.ID}, {"host", "/roam", host, reserved.ID}, {"joiner", "/nat", joiner, joining.ID},
			{"host", "/nat", host, reserved.ID}} {
			before := ports(t, relay)
			move.player.Do(move.command)
			move.player.Expect("bound -1") // after /nat by ERROR 3, or by the silence if that is lost
			testkit.Eventually(t, "the "+move.name+" has a new port", func() bool {
				return ports(t, relay)[move.id] != before[move.id]
			})
			talk(move.name + " after " + move.command)
		}
		end(t, host)
		joiner.Expect("left -1")
		joiner.Do("is anyone there?")
		joiner.Expect("no link")
		joiner.Do("/connect")
		joiner.Expect("refused 4")
		end(t, joiner)
		testkit.Eventually(t, "both have closed their allocations", func() bool { return len(ports(t, relay)) == 0 })
	})
}

// TestTwoSessions: of two hosts with one allocation one ends, and the other keeps it.
func TestTwoSessions(t *testing.T) {
	needLong(t)
	t.Parallel()
	program := sanitized(t, testkit.Program(t, "gcc", "gcc"), "example.c")
	relay := enginetest.Start(t, engine.Config{})
	reserved := relay.Host("alice", 2)
	first := play(t, program, relay, reserved, true, nil)
	first.Expect("bound -1")
	second := play(t, program, relay, reserved, true, nil)
	second.Expect("bound -1")
	lives := clienttest.OneEnds(t, "in-use -1", first, second)
	joiner := play(t, program, relay, relay.Joiner("bob", reserved.ID), false, nil)
	joiner.Expect("connected -1")
	joiner.Do("hello")
	lives.Await("message -1 hello")
	end(t, lives)
	end(t, joiner)
}
