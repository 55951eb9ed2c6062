//go:build unix

package csharp

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

func TestMain(m *testing.M) {
	if testkit.ChildTask() == "" {
		testkit.DefaultParallel(16) // They wait for clients and clocks.
		var err error
		if programs.dir, err = os.MkdirTemp("", "ferry-csharp-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		programs.files = map[string]string{}
		code := m.Run()
		_ = os.RemoveAll(programs.dir)
		os.Exit(code)
	}
	url, stop := relaytest.StartService(tokens()...)
	fmt.Println(url)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	stop()
}

// long permits the rows that take up to a minute.
var long = flag.Bool("long", false, "rows that take 15 to 64 s")

// scene is a match of a player and a host in C#.
type scene struct {
	*clienttest.Program
	host   *clienttest.Program
	target *os.Process // of the signal
	stop   func()      // ends what the player sends
	begin  time.Time
}

// situation is a row of TestTable.
type situation struct {
	name   string
	relay  bool // gets the signal, and not the host
	signal syscall.Signal
	leaves bool          // the host, without a signal
	lasts  time.Duration // until the target goes on
	silent bool          // the player sends nothing meanwhile
	want   string        // what the game is told; empty: nothing, it plays on
	least  time.Duration // until it is told
}

// TestTable: what the game of a player is told in each situation, and after how long. The rows of README's table
// that take long wait at the same time here; see also TestNewAddress, TestOtherAddress, TestLostLink, TestFlood, TestLoss.
func TestTable(t *testing.T) {
	t.Parallel()
	run := compile(t, "Play.cs")
	shared, _, _ := service(t)
	rows := []situation{
		// In the order in which they end.
		{name: "host leaves", leaves: true, silent: true, want: "left peer"},
		{name: "relay stopped 3 s", relay: true, signal: syscall.SIGSTOP, lasts: 3 * time.Second},
		{name: "idle 12 s", lasts: 12 * time.Second, silent: true},
		{name: "relay stopped 15 s", relay: true, signal: syscall.SIGSTOP, lasts: 15 * time.Second},
		{name: "host killed", signal: syscall.SIGKILL, want: "refused peer 4", least: 5 * time.Second},
		{name: "relay killed", relay: true, signal: syscall.SIGKILL, want: "ended nobody -2", least: 55 * time.Second},
	}
	if !*long {
		short := slices.IndexFunc(rows, func(r situation) bool { return r.least > 0 || r.lasts > 12*time.Second })
		for _, row := range rows[short:] {
			t.Run(row.name, func(t *testing.T) { t.Skip("NOT TESTED: it takes 15 to 64 s; make clients does it") })
		}
		rows = rows[:short]
	}
	scenes := make([]*scene, len(rows))
	for i, row := range rows {
		s, url := &scene{}, shared
		if row.relay {
			relay := testkit.StartChild(t, "relay")
			url, s.target = relay.Line(t), relay.Process
		}
		s.host = clienttest.Start(t, run(url, hostToken, "echo"))
		if !row.relay {
			s.target = s.host.Process
		}
		s.Program = clienttest.Start(t, run(url, playerToken, s.host.Expect("code")))
		s.Do("connect")
		s.Expect("connected")
		s.Reach("before")
		scenes[i] = s
	}
	for i, row := range rows {
		s := scenes[i]
		s.begin = time.Now()
		if row.signal != 0 {
			if err := s.target.Signal(row.signal); err != nil {
				t.Fatal(err)
			}
		}
		if row.leaves {
			s.host.Do("leave")
		}
		s.stop = func() {}
		if !row.silent {
			s.stop = s.Repeat("send more")
		}
	}
	for i, row := range rows {
		s := scenes[i]
		t.Run(row.name, func(t *testing.T) {
			s.T = t
			defer s.stop()
			if row.want != "" {
				s.Expect(row.want)
				took := time.Since(s.begin)
				t.Logf("%s after %v", row.want, took.Round(10*time.Millisecond))
				if took < row.least {
					t.Errorf("after %v, want at least %v", took, row.least)
				}
				return
			}
			time.Sleep(time.Until(s.begin.Add(row.lasts)))
			if row.signal == syscall.SIGSTOP {
				if err := s.target.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			on := time.Now()
			s.Reach("after")
			t.Logf("it plays on after %v", time.Since(on).Round(10*time.Millisecond))
		})
	}
}

// TestLoss: a fifth of all datagrams are lost, from the first BIND on, and the match goes on.
func TestLoss(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	code := clienttest.Host(t, caller, 4, nil).Code
	gate, front := clienttest.GateAPI(t, url)
	gate.Drop(func(netip.AddrPort, proto.Type) bool { return rand.Float64() < 0.2 })
	g := play(t, front, playerToken, code)
	g.Do("connect")
	g.Expect("connected")
	for i := range 20 {
		g.Reach(fmt.Sprint("message-", i))
	}
}
