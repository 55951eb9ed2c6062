//go:build lab && linux

package lab

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Our clients, as programs of their own, in networks of the world: each sends lines to a host,
// which sends them back, before and after a change.

// clientProgram is a player in one language: a program that sends what it reads to the host, or
// numbers, and prints a word before each line of the host.
type clientProgram struct {
	name  string
	back  string
	talks bool // it sends numbers, and reads nothing
	// said is what it prints when its match is over, and why.
	said string
	// start returns the program for the match with a code, and lines that it reads first.
	start func(g *worldGame, url, code string) (program []string, first []string)
}

// joinProgram is one that calls the API itself.
func joinProgram(command ...string) func(*worldGame, string, string) ([]string, []string) {
	return func(_ *worldGame, url, code string) ([]string, []string) {
		return append(slices.Clone(command), url, code, clientToken), nil
	}
}

func clientPrograms(t *testing.T) []clientProgram {
	dir := t.TempDir()
	build := func(name, pkg string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), testkit.Program(t, name, pkg), args...)
		cmd.Dir = "../../client"
		if name == "go" {
			cmd.Dir = ""
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	inC, inCSharp := filepath.Join(dir, "c"), filepath.Join(dir, "Echo.exe")
	build("gcc", "gcc", "-std=c99", "-O2", "-Ic", "-o", inC, "c/example.c", "c/ferry_relay.c")
	testkit.Program(t, "mono", "mono-runtime")
	build("mcs", "mono-mcs", "-nologo", "-r:System.Core.dll", "-out:"+inCSharp, "csharp/Runtime/FerryRelay.cs", "csharp/Tests~/Echo.cs")
	node, inNode := testkit.Program(t, "node", "nodejs"), filepath.Join(dir, "player.mjs")
	build("go", "golang", "tool", "esbuild", "testdata/player.mjs", "--bundle", "--platform=node", "--format=esm", "--log-level=warning",
		"--outfile="+inNode)
	inGodot := filepath.Join(dir, "godot")
	for _, from := range []string{"../../client/godot", "testdata"} {
		scripts, err := filepath.Glob(from + "/*.gd")
		if err != nil || len(scripts) == 0 {
			t.Fatalf("%s: %v, %v", from, scripts, err)
		}
		for _, script := range scripts {
			text, err := os.ReadFile(script)
			if err = cmp.Or(err, os.MkdirAll(inGodot, 0o755)); err == nil {
				err = os.WriteFile(filepath.Join(inGodot, filepath.Base(script)), text, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	godot := testkit.Program(t, "godot3-server", "godot3-server")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []clientProgram{
		{name: "Go", back: "back ", said: "ended", start: joinProgram(self, echoCommand, "join")},
		{name: "C#", back: "back ", said: "ended", start: joinProgram("mono", inCSharp, "join")},
		{name: "TypeScript", back: "back ", said: "ended", talks: true, start: joinProgram(node, "--experimental-websocket",
			"--no-warnings", inNode)},
		{name: "GDScript", back: "back ", said: "ended", talks: true, start: func(_ *worldGame, url, code string) ([]string, []string) {
			return []string{"env", "-C", inGodot, fmt.Sprintf("FERRY_PLAY=%s %s %s", url, code, clientToken), godot, "-s", "player.gd"}, nil
		}},
		{name: "C", back: "message -1 ", said: "ended", start: func(g *worldGame, _, code string) ([]string, []string) {
			a, err := g.clientAPI().Join(g.Context(), code)
			g.must(err)
			at, ok := a.Endpoint("udp")
			if !ok {
				g.Fatal("no endpoint of udp")
			}
			encode := base64.StdEncoding.EncodeToString
			return []string{inC, at.Host, fmt.Sprint(at.Port)}, []string{encode(a.AllocationIDBytes), encode(a.Key), encode(a.ConnectionData),
				encode(a.HostConnectionData)}
		}},
	}
}

var clientToken = fmt.Sprintf(tokenFormat, 0)

// echoCommand is the argument with which the test's own program is the client in Go.
const echoCommand = "echo-client"

// echoClient is that program: host URL, or join URL CODE.
func echoClient(args []string) error {
	ctx := context.Background()
	relay := &api.Client{BaseURL: args[1], Token: os.Getenv("RELAY_TOKEN")}
	isHost := args[0] == "host"
	var ticket client.Ticket
	var err error
	if isHost {
		ticket, err = client.Reserve(ctx, relay, 4, "")
	} else {
		ticket, err = client.Redeem(ctx, relay, args[2])
	}
	if err != nil {
		return err
	}
	session, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		return err
	}
	defer session.Close()
	go func() { _ = session.Run(ctx) }()
	buf := make([]byte, 1500)
	if isHost {
		if err := session.Bind(ctx); err != nil {
			return err
		}
		code, err := relay.JoinCode(ctx, ticket.ID.String())
		if err != nil {
			return err
		}
		fmt.Println("code", code)
		for conn := session.PacketConn(); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return err
			}
			_, _ = conn.WriteTo(buf[:n], from)
		}
	}
	peer, err := session.Connect(ctx)
	if err != nil {
		return err
	}
	fmt.Println("connected")
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			_, _ = peer.Write(in.Bytes())
		}
	}()
	for {
		n, err := peer.Read(buf)
		if err != nil {
			return err
		}
		fmt.Printf("back %s\n", buf[:n])
	}
}

func (g *worldGame) runProgram(in Namespace, program ...string) *clienttest.Program {
	g.Helper()
	cmd := exec.CommandContext(g.Context(), "ip", append([]string{"netns", "exec", in.Name}, program...)...)
	cmd.Env = append(os.Environ(), "RELAY_TOKEN="+clientToken)
	return clienttest.Start(g, cmd)
}

func hasPrinted(p *clienttest.Program, beginning string) func() bool {
	return func() bool { _, n := p.Find(beginning); return n > 0 }
}

func (g *worldGame) clientAPI() *api.Client {
	c := g.relay.API(g.net.Clients, 0)
	c.BaseURL = "http://" + g.apiAddr().String()
	return c
}

func (g *worldGame) apiAddr() netip.AddrPort {
	if g.row.has(dimRelay, "6") {
		return RelayAddr6
	}
	return RelayAddr
}

// echo sends a line until it is back, which is at once unless datagrams are lost.
func (g *worldGame) echo(p *clienttest.Program, c clientProgram, line string, within time.Duration) bool {
	if c.talks { // What was on its way may still arrive.
		_, before := p.Find(c.back)
		return g.wait(within, func() bool { _, n := p.Find(c.back); return n > before+4 })
	}
	next := time.Time{}
	return g.wait(within, func() bool {
		if now := time.Now(); now.After(next) {
			p.Do(line)
			next = now.Add(500 * time.Millisecond)
		}
		return hasPrinted(p, c.back+line)()
	})
}

// moveMachine gives the players' machine its first address, or another one, after which no
// router forwards what comes from the former.
func (g *worldGame) moveMachine(at4, at6 netip.Addr, former ...netip.Addr) {
	n := g.net
	g.must(n.Clients.IP("addr add " + at6.String() + "/128 dev lo nodad"))
	g.must(n.Clients.IP("route replace default via " + routerLAN + " src " + at4.String()))
	g.must(n.Clients.IP("-6 route replace default via " + routerLAN6 + " src " + at6.String()))
	for _, a := range former {
		family := "ip"
		if a.Is6() {
			family = "ip6"
		}
		g.must(n.Router.Filter(fmt.Sprintf("table %s gone {\n chain forward {\n type filter hook forward priority -10\n %s saddr %s drop\n %s daddr %s drop\n }\n}",
			family, family, a, family, a)))
	}
}

// clientRows are the networks and changes of each client. A player that is away for 20 s is over, and
// has to be told so.
func clientRows(all bool) []map[int]string {
	rows := []map[int]string{
		{dimRelay: "6", dimHost: "6", dimPlayers: "6,6", dimPath: "1280"},
		{dimChange: "network"},
		{dimEvent: "kill"},
	}
	if all {
		rows = append(rows, map[int]string{}, map[int]string{dimAddress: "nat ports", dimChange: "4s"}, map[int]string{dimChange: "20s"},
			map[int]string{dimRelay: "6", dimHost: "6", dimPlayers: "6,6", dimChange: "network"}, map[int]string{dimEvent: "upgrade"},
			map[int]string{dimAddress: "nat", dimChange: "20s"})
	}
	return rows
}

// TestWorldClients: each client gets in, and after the change goes on, or says in words that its
// match is over.
func TestWorldClients(t *testing.T) {
	programs := clientPrograms(t)
	var table worldTable
	t.Run("rows", func(t *testing.T) {
		for _, c := range programs {
			for _, given := range clientRows(*worldAll) {
				row := make(worldRow, len(dimensions))
				for dim, value := range given {
					row[dim] = slices.Index(dimensions[dim].values, value)
				}
				row[dimTransport] = slices.Index(dimensions[dimTransport].values, "ws") // The API without TLS, and its endpoint.
				name := c.name + ": " + row.String()
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					g := newWorldGame(t, row)
					g.playClient(c)
					table.add(&g.worldResult)
					if len(g.faults) > 0 {
						t.Errorf("%s: %s", name, g.verdict())
					}
				})
			}
		}
	})
}

func (g *worldGame) playClient(c clientProgram) {
	g.moveMachine(FirstClient, FirstClient6)
	self, err := os.Executable()
	g.must(err)
	url := "http://" + g.apiAddr().String()
	host := g.runProgram(g.net.Peers, self, echoCommand, "host", url)
	if !g.wait(worldIn, hasPrinted(host, "code ")) {
		g.Fatalf("the host does not bind:\n%s", host)
	}
	line, _ := host.Find("code ")
	code := strings.TrimPrefix(line, "code ")
	program, first := c.start(g, url, code)
	p := g.runProgram(g.net.Clients, program...)
	for _, line := range first {
		p.Do(line)
	}
	if !g.wait(testkit.WaitLimit, hasPrinted(p, "connected")) || !g.echo(p, c, "one", testkit.WaitLimit) {
		g.fault("it does not get in:\n%s", p)
		return
	}
	over := false
	switch g.row.get(dimChange) {
	case "network":
		g.moveMachine(mobile, mobile6, FirstClient, FirstClient6)
	case "4s":
		g.outage(4)
	case "20s":
		g.outage(20)
		over = true
	}
	g.happen()
	switch begin := time.Now(); {
	case !over:
		if !g.echo(p, c, "two", testkit.WaitLimit) {
			g.fault("it does not go on:\n%s", p)
		}
	case !g.wait(testkit.WaitLimit, hasPrinted(p, c.said)):
		g.fault("it does not say that its match is over:\n%s", p)
	default:
		t := time.Since(begin)
		g.Logf("%s says after %v that it is over:\n%s", c.name, t.Round(time.Millisecond), p)
	}
}
