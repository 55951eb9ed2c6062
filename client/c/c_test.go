// Package c holds the client in C, ferry_relay.h, and its tests, which run programs made by gcc and clang.
package c

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(8) // They wait for clients and clocks.
	os.Exit(m.Run())
}

// within bounds a wait for what a program prints.
const within = time.Minute

// compilers are the commands, and the Debian packages that have them.
var compilers = [][2]string{{"gcc", "gcc"}, {"clang-14", "clang-14 libclang-rt-14-dev"}}

// strict are the flags under which the client has no warning.
var strict = []string{"-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I."}

func forEachCompiler(t *testing.T, test func(t *testing.T, compile func(args ...string) string)) {
	t.Parallel()
	testkit.Input(t, "ferry_relay.h", "ferry_relay.c", "example.c", "testdata/test.c")
	for _, c := range compilers {
		t.Run(c[0], func(t *testing.T) {
			t.Parallel()
			cc := testkit.Program(t, c[0], c[1])
			test(t, func(args ...string) string {
				t.Helper()
				file := filepath.Join(t.TempDir(), "program")
				args = append(append([]string{"-o", file}, strict...), args...)
				if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
					t.Fatalf("%s %s: %v\n%s", cc, strings.Join(args, " "), err, out)
				}
				return file
			})
		})
	}
}

// sanitized makes a program that ends at the first fault of memory or undefined behaviour.
func sanitized(compile func(args ...string) string, files ...string) string {
	return compile(append([]string{
		"-std=c99", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "ferry_relay.c",
	}, files...)...)
}

// TestWarnings: there are none with optimisation, nor with the smallest bound of peers.
func TestWarnings(t *testing.T) {
	forEachCompiler(t, func(t *testing.T, compile func(args ...string) string) {
		compile("-std=c99", "-O2", "-Wconversion", "-c", "ferry_relay.c")
		compile("-std=c99", "-O2", "-DFERRY_MAX_PEERS=1", "-c", "ferry_relay.c")
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
	forEachCompiler(t, func(t *testing.T, compile func(args ...string) string) {
		compile("-std=c99", "-O2", "-c", file)
	})
}

// TestCPlusPlus: a program in C++ includes the header and links the object of the C compiler.
func TestCPlusPlus(t *testing.T) {
	program := testkit.Program(t, "g++", "g++")
	main := filepath.Join(t.TempDir(), "main.cc")
	if err := os.WriteFile(main, []byte(`#include "ferry_relay.h"
int main() {
	static ferry_session s;
	static ferry_ticket t;
	t.data_len = 1;
	return ferry_init(&s, &t, 0, 0) == 1 ? 0 : 1;
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	forEachCompiler(t, func(t *testing.T, compile func(args ...string) string) {
		object, file := compile("-std=c99", "-c", "ferry_relay.c"), filepath.Join(t.TempDir(), "program")
		args := append([]string{"-std=c++11", "-o", file}, strict...)
		if out, err := exec.CommandContext(t.Context(), program, append(args, main, object)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := exec.CommandContext(t.Context(), file).Run(); err != nil {
			t.Error(err)
		}
	})
}

// TestVectors: each golden packet has the fields that its inputs say, is encoded to the same bytes, and is
// refused with a byte less or more.
func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("../../docs/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Inputs  map[string]struct{ Hex, Base64 string }
		Vectors []struct {
			ID, Message, Hex string
			Inputs           map[string]any
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	input := func(v any) string { // in hex
		in := golden.Inputs[fmt.Sprint(v)]
		if in.Base64 == "" {
			return in.Hex
		}
		data, err := base64.StdEncoding.DecodeString(in.Base64)
		if err != nil {
			t.Fatal(err)
		}
		return hex.EncodeToString(data)
	}
	or := func(v any, otherwise string) string {
		if v == nil {
			return otherwise
		}
		return fmt.Sprint(v)
	}
	var lines strings.Builder
	var want []string
	for _, v := range golden.Vectors {
		in := v.Inputs
		fmt.Fprintln(&lines, v.Hex, input(or(in["key"], "K1")))
		zero, again := strings.Repeat("0", 32), v.Hex
		id, to, number, code, data := zero, zero, "0", "0", "-"
		for _, k := range []string{"from", "allocation_id"} {
			if in[k] != nil {
				id = input(in[k])
			}
		}
		if in["to"] != nil {
			to = input(in["to"])
		}
		for _, k := range []string{"nonce", "number"} {
			number = or(in[k], number)
		}
		code = or(in["code"], code)
		for _, k := range []string{"connection_data", "to_connection_data"} {
			if in[k] != nil {
				data = input(in[k])
			}
		}
		data = or(in["content"], data)
		var kind byte
		fmt.Sscanf(v.Hex[6:8], "%02x", &kind)
		switch v.ID {
		case "bind-bad-mac": // the same message with the right MAC
			good := golden.Vectors[0]
			data, again = input(good.Inputs["connection_data"]), good.Hex
		case "relay-utp2-connreq": // content of the layer above
			data = v.Hex[2*proto.RelayOverhead:]
		case "rejected-minimal": // the client takes it, but writes the form with ids
			again = v.Hex + zero + zero
		case "qos-request":
			want = append(want, "qos "+v.Hex)
			continue
		case "qos-response":
			want = append(want, "qos 3 48879 1700000000000")
			continue
		}
		want = append(want, strings.Join([]string{fmt.Sprint(kind), id, to, number, "0", code, data, again}, " "))
	}
	forEachCompiler(t, func(t *testing.T, compile func(args ...string) string) {
		cmd := exec.CommandContext(t.Context(), sanitized(compile, "testdata/test.c"), "vectors")
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
				t.Errorf("%s:\n%s, want\n%s", golden.Vectors[i].ID, got[i], want[i])
			}
		}
	})
}

// TestSession: the state machine against a scripted relay and clock, and random datagrams and calls.
func TestSession(t *testing.T) {
	forEachCompiler(t, func(t *testing.T, compile func(args ...string) string) {
		program := sanitized(compile, "testdata/test.c")
		for _, args := range [][]string{{"rules"}, {"fuzz", "1", "100000"}, {"fuzz", fmt.Sprint(time.Now().UnixNano()), "100000"}} {
			out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
			if err != nil {
				t.Errorf("%q: %v\n%s", args, err, out)
			}
		}
	})
}

// player is a running example.
type player struct {
	t     *testing.T
	id    proto.AllocationID
	stdin io.WriteCloser
	lines chan string
	cmd   *exec.Cmd
}

// play starts a host or a joiner, whose datagrams pass the gate if there is one.
func play(t *testing.T, program string, r *enginetest.Relay, res alloc.Reservation, isHost bool, g *gate) *player {
	t.Helper()
	cred := r.Credentials(res)
	if g != nil {
		cred.Relay = g.player.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	fields := [][]byte{cred.ID[:], cred.Key, cred.ConnectionData, cred.HostConnectionData}
	if isHost {
		fields[3] = nil
	}
	cmd := exec.CommandContext(t.Context(), program, cred.Relay.Addr().String(), fmt.Sprint(cred.Relay.Port()))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &player{t: t, id: res.ID, stdin: stdin, lines: make(chan string, 100), cmd: cmd}
	go func() {
		defer close(p.lines)
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			p.lines <- scan.Text()
		}
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for _, f := range fields {
		p.write(base64.StdEncoding.EncodeToString(f))
	}
	return p
}

func (p *player) write(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// expect waits until the program prints a line, and fails at another one, except that a slow machine
// may make the relay look silent.
func (p *player) expect(want string) {
	p.t.Helper()
	limit := time.After(within)
	for {
		select {
		case line, ok := <-p.lines:
			switch {
			case !ok:
				p.t.Fatalf("it ended and did not print %q: %v", want, p.cmd.Wait())
			case line == want:
				return
			case line != "silent -1 " && line != "bound -1 ":
				p.t.Fatalf("it prints %q, want %q", line, want)
			}
		case <-limit:
			p.t.Fatalf("it does not print %q", want)
		}
	}
}

// end closes the session, and expects that the program ends well.
func (p *player) end() {
	p.t.Helper()
	_ = p.stdin.Close()
	for range p.lines {
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Error(err)
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
	forEachCompiler(t, func(t *testing.T, compile func(args ...string) string) {
		program := sanitized(compile, "example.c")
		relay := enginetest.Start(t, engine.Config{})
		reserved := relay.Host("alice", 2)
		host := play(t, program, relay, reserved, true, nil)
		host.expect("bound -1 ")
		joiner := play(t, program, relay, relay.Joiner("bob", reserved.ID), false, nil)
		joiner.expect("connected -1 ")
		talk := func(what string) {
			t.Helper()
			joiner.write(what + " from the joiner")
			host.expect("message -1 " + what + " from the joiner")
			host.write(what + " from the host")
			joiner.expect("message -1 " + what + " from the host")
		}
		talk("hello")
		for _, move := range []struct {
			name, command string
			player        *player
		}{{"joiner", "/roam", joiner}, {"host", "/roam", host}, {"joiner", "/nat", joiner}, {"host", "/nat", host}} {
			before := ports(t, relay)
			move.player.write(move.command)
			move.player.expect("bound -1 ") // after /nat by ERROR 3, or by the silence if that is lost
			testkit.Eventually(t, "the "+move.name+" has a new port", func() bool {
				return ports(t, relay)[move.player.id] != before[move.player.id]
			})
			talk(move.name + " after " + move.command)
		}
		host.end()
		joiner.expect("left -1 ")
		joiner.write("is anyone there?")
		joiner.expect("no link")
		joiner.write("/connect")
		joiner.expect("refused 4 ")
		joiner.end()
		testkit.Eventually(t, "both have closed their allocations", func() bool { return len(ports(t, relay)) == 0 })
	})
}
