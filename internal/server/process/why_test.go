package process

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/players/hooks"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
)

type whyRig struct {
	running
	t *testing.T
}

func (r *whyRig) match(connections int) (host, joiner client.Ticket, code string) {
	r.t.Helper()
	host, err := client.Reserve(r.t.Context(), r.caller(secret), connections, "")
	if err != nil {
		r.t.Fatal(err)
	}
	if code, err = r.caller(secret).JoinCode(r.t.Context(), host.ID.String()); err != nil {
		r.t.Fatal(err)
	}
	return host, r.join(code), code
}

func (r *whyRig) join(code string) client.Ticket {
	r.t.Helper()
	joiner, err := client.Redeem(r.t.Context(), r.caller(secret), code)
	if err != nil {
		r.t.Fatal(err)
	}
	return joiner
}

func (r *whyRig) why(name string) (y operator.Why) {
	r.t.Helper()
	if _, body := fetch(r.t, r.AdminURL()+"/why/"+name); json.Unmarshal([]byte(body), &y) != nil {
		r.t.Fatalf("answer %q", body)
	}
	return y
}

// expect waits until the sentence about an allocation contains want, and calls again each
// time before it looks.
func (r *whyRig) expect(name, want string, again func()) {
	r.t.Helper()
	var last string
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%s: last answer %q, want %q", name, last, want)
		}
	}()
	testkit.Within(r.t, time.Minute, want, func() bool {
		if again != nil {
			again()
		}
		last = r.why(name).Because
		return strings.Contains(last, want)
	})
}

type rawClient struct {
	net.Conn
	ticket client.Ticket
	nonce  uint16
}

func (r *whyRig) raw(ticket client.Ticket) *rawClient { return dialRaw(r.t, ticket) }

func dialRaw(t *testing.T, ticket client.Ticket) *rawClient {
	conn, err := net.Dial("udp", ticket.Server.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rawClient{conn, ticket, 1}
}

func (c *rawClient) bindWith(nonce uint16, data []byte, key proto.Key) {
	var signer proto.Signer
	_, _ = c.Write(signer.Append(nil, proto.Bind{Nonce: nonce, ConnectionData: data}, &key))
}

func (c *rawClient) bind() { c.bindWith(c.nonce, c.ticket.ConnectionData, c.ticket.Key) }

func (c *rawClient) connect(data []byte) {
	_, _ = c.Write(proto.ConnectRequest{ID: c.ticket.ID, ConnectionData: data}.Append(nil))
}

func (c *rawClient) relay(to proto.AllocationID) {
	_, _ = c.Write(proto.Relay{From: c.ticket.ID, To: to, Payload: []byte("hello")}.Append(nil))
}

// TestWhy follows a host and a player from the reservation to the end.
func TestWhy(t *testing.T) {
	t.Parallel()
	r := whyRig{start(t, options(local(), Serve)), t}
	host, joiner, code := r.match(4)
	r.expect(host.ID.String(), "allocated", nil)
	r.expect(joiner.ID.String(), "joined", nil)
	r.expect("00000000-0000-4000-8000-000000000001", "nothing is known of it", nil)
	play(t, host, joiner, func() {
		r.expect(joiner.ID.String(), "it plays", nil)
		r.expect(code, "it plays", nil)
		y := r.why(strings.ToLower(code))
		if y.ID != host.ID.String() || y.Role != "host" || y.JoinCode != code || len(y.Players) != 1 ||
			y.Players[0].ID != joiner.ID.String() || !strings.HasPrefix(y.Players[0].Because, "it plays") {
			t.Errorf("by code: %+v", y)
		}
		player := r.operator.status.history.PlayerOf(joiner.ID)
		if _, found := fetch(t, r.AdminURL()+"/matches?q="+url.QueryEscape(player)); player == "" || !strings.Contains(found, host.ID.String()) {
			t.Errorf("matches of player %q: %s", player, found)
		}
		var page operator.Allocations
		_, body := fetch(t, r.AdminURL()+"/allocations?role=host")
		if err := json.Unmarshal([]byte(body), &page); err != nil || len(page.Allocations) != 1 || page.Allocations[0].JoinCode != code {
			t.Errorf("the list has no join code: %v\n%s", err, body)
		}
	})
	r.expect(joiner.ID.String(), "it ended", nil)
	r.expect(host.ID.String(), "it ended", nil)
	var kinds []string
	for _, e := range r.why(host.ID.String()).Events {
		kinds = append(kinds, e.What)
	}
	if got := strings.Join(kinds, " "); !strings.HasPrefix(got, "reserved code joined bound linked") || !slices.Contains(kinds, "ended") {
		t.Errorf("events of the host: %s", got)
	}
	if status, body := fetch(t, r.AdminURL()+"/why/"+code); status != 404 || !strings.Contains(body, "nor the join code of a live host") {
		t.Errorf("the code of an ended host: %d %s", status, body)
	}
}

// TestWhyCauses plants causes by which a player is not in its match. Each is named.
func TestWhyCauses(t *testing.T) {
	t.Parallel()
	c := local()
	const long = 10 * time.Minute
	c.JoinerDatagrams, c.IdleTimeout, c.HostAloneTimeout, c.BindTimeout = 10, long, long, long
	r := whyRig{start(t, options(c, Serve)), t}
	bound := func(ticket client.Ticket) *rawClient {
		t.Helper()
		c := r.raw(ticket)
		testkit.Within(t, time.Minute, "bound", func() bool {
			c.bind()
			for _, e := range r.why(ticket.ID.String()).Events {
				if e.What == "bound" {
					return true
				}
			}
			return false
		})
		return c
	}
	host, joiner, code := r.match(1)
	other, stranger, _ := r.match(1)

	t.Run("blocked", func(t *testing.T) { r.expect(joiner.ID.String(), "no BIND has arrived: UDP port", nil) })
	t.Run("wrong key", func(t *testing.T) {
		raw := r.raw(joiner)
		r.expect(joiner.ID.String(), "a BIND whose signature is wrong", func() {
			raw.bindWith(1, joiner.ConnectionData, other.Key)
		})
	})
	t.Run("a game that crashed on DTLS, plain at its port", func(t *testing.T) {
		crashed, joiner := r.join(code), r.join(code)
		socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		session := wiretest.DTLS(t, socket, crashed.Server, crashed.ID, crashed.Key[:])
		t.Cleanup(func() { session.Close() })
		var signer proto.Signer
		bind := func(ticket *client.Ticket) []byte {
			return signer.Append(nil, proto.Bind{ConnectionData: ticket.ConnectionData}, &ticket.Key)
		}
		session.Ask(bind(&crashed), func(b []byte) bool { kind, _ := proto.ParseType(b); return kind == proto.TypeBindReceived })
		plain := bind(&joiner)
		r.expect(joiner.ID.String(), "its BIND is refused", func() { _, _ = socket.WriteTo(plain, net.UDPAddrFromAddrPort(crashed.Server)) })
		if y := r.why(joiner.ID.String()); !strings.Contains(y.Because, "a plain message from the address and port of a DTLS session") {
			t.Errorf("it says %q", y.Because)
		}
	})
	t.Run("connection data of the host", func(t *testing.T) {
		joiner := r.join(code)
		raw := r.raw(joiner)
		r.expect(joiner.ID.String(), "a BIND with the host's connection data", func() {
			raw.bindWith(1, joiner.HostConnectionData, joiner.Key)
		})
	})
	t.Run("no BIND, but RELAY", func(t *testing.T) {
		joiner := r.join(code)
		raw := r.raw(joiner)
		r.expect(joiner.ID.String(), "other messages have arrived, but no BIND", func() { raw.relay(host.ID) })
	})
	player := bound(joiner)
	t.Run("host not bound", func(t *testing.T) {
		r.expect(joiner.ID.String(), "its host is not bound yet", func() { player.connect(joiner.HostConnectionData) })
	})
	hostClient := bound(host)
	t.Run("no request", func(t *testing.T) {
		joiner := r.join(code)
		raw := bound(joiner)
		r.expect(joiner.ID.String(), "no CONNECT_REQUEST has arrived: the game does not connect", raw.bind)
	})
	t.Run("ticket of another match", func(t *testing.T) {
		joiner := r.join(code)
		raw := bound(joiner)
		r.expect(joiner.ID.String(), "a CONNECT_REQUEST with the ticket of another match", func() {
			raw.connect(stranger.HostConnectionData)
		})
	})
	t.Run("RELAY before the link", func(t *testing.T) {
		joiner := r.join(code)
		raw := bound(joiner)
		r.expect(joiner.ID.String(), "no CONNECT_REQUEST has arrived, and other messages are refused", func() { raw.relay(host.ID) })
	})
	r.expect(joiner.ID.String(), "it plays", func() { player.bind(); player.connect(joiner.HostConnectionData) })
	t.Run("full", func(t *testing.T) {
		joiner := r.join(code)
		raw := bound(joiner)
		r.expect(joiner.ID.String(), "a CONNECT_REQUEST found the host full", func() { raw.connect(joiner.HostConnectionData) })
	})
	t.Run("quota", func(t *testing.T) {
		r.expect(joiner.ID.String(), "above a limit", func() {
			for range 100 {
				player.relay(host.ID)
			}
		})
	})
	t.Run("silent", func(t *testing.T) { r.expect(joiner.ID.String(), "nothing has arrived from it for", hostClient.bind) })
	t.Run("old nonce from another address", func(t *testing.T) {
		moved := r.raw(joiner)
		r.expect(joiner.ID.String(), "a BIND with an old nonce",
			func() { hostClient.bind(); moved.bindWith(0, joiner.ConnectionData, joiner.Key) })
	})
	t.Run("host ended", func(t *testing.T) {
		joiner := r.join(code)
		raw := bound(joiner)
		if err := r.relay.engine.End(t.Context(), host.ID); err != nil {
			t.Fatal(err)
		}
		r.expect(joiner.ID.String(), "its CONNECT_REQUEST names a host that ended", func() { raw.connect(joiner.HostConnectionData) })
	})
	t.Run("never bound", func(t *testing.T) {
		if err := r.relay.engine.End(t.Context(), stranger.ID); err != nil {
			t.Fatal(err)
		}
		r.expect(stranger.ID.String(), "since no BIND had arrived", nil)
	})
}

// TestWhyLimitedPath: a backend names the address of its players, and they play from another
// network, a private one. What goes there beyond the limits is dropped, and why says so of each
// receiver, a host or a joiner; in a fleet as well, where the API process knows the address.
func TestWhyLimitedPath(t *testing.T) {
	t.Parallel()
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		c := local()
		c.Tokens[0].Kind = "server"
		testWhyLimitedPath(t, whyRig{start(t, options(c, Serve)), t})
	})
	t.Run("fleet", func(t *testing.T) {
		t.Parallel()
		k := newFleet(t)
		o := k.relayOptions(1, "eu")
		o.Config.BindTimeout = config.Serve().BindTimeout
		start(t, o)
		r := whyRig{k.api(), t}
		testkit.Within(t, time.Minute, "the relay", func() bool { return len(r.frontEnd.fleet.Nodes()) == 1 })
		testWhyLimitedPath(t, r)
	})
}

func testWhyLimitedPath(t *testing.T, r whyRig) {
	t.Helper()
	const elsewhere = "203.0.113.9"
	const players = 15
	a, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: players, PlayerAddress: elsewhere})
	if err != nil {
		t.Fatal(err)
	}
	code, err := r.caller(secret).JoinCode(t.Context(), a.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	host, err := client.TicketFrom(a)
	if err != nil {
		t.Fatal(err)
	}
	one := r.raw(host)
	var all []*rawClient
	for range players {
		b, err := r.caller(secret).JoinFor(t.Context(), api.JoinRequest{JoinCode: code, PlayerAddress: elsewhere})
		if err != nil {
			t.Fatal(err)
		}
		joiner, err := client.TicketFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		c := r.raw(joiner)
		all = append(all, c)
		r.expect(joiner.ID.String(), "it plays: bound, and linked", func() { one.bind(); c.bind(); c.connect(joiner.HostConnectionData) })
	}
	flood := func(from *rawClient, to ...*rawClient) {
		from.bind()
		for range 400 {
			for _, c := range to {
				_, _ = from.Write(proto.Relay{From: from.ticket.ID, To: c.ticket.ID, Payload: make([]byte, 1200)}.Append(nil))
			}
		}
		for _, c := range to {
			c.bind()
		}
	}
	const want = "but some messages to it are dropped"
	named := 0
	testkit.Within(t, time.Minute, "each joiner is named", func() bool {
		flood(one, all...)
		named = 0
		for _, p := range r.why(host.ID.String()).Players {
			if strings.Contains(p.Because, want) && strings.Contains(p.Because, "plays from another network than that of its API call") {
				named++
			}
		}
		return named == players
	})
	r.expect(host.ID.String(), want, func() { flood(all[0], one) })
}

// TestProjectTimeline: what happened in a project, and nothing of another one, the newest
// first; and no place for callers without a token.
func TestProjectTimeline(t *testing.T) {
	t.Parallel()
	c := local()
	c.Tokens = append(c.Tokens, config.Token{Secret: "of-another-project-1", Project: "other", Environment: "test", Kind: "player"})
	r := whyRig{start(t, options(c, Serve)), t}
	other, err := client.Reserve(t.Context(), r.caller("of-another-project-1"), 4, "")
	if err != nil {
		t.Fatal(err)
	}
	timeline := func(project string) (lines []string) {
		var answer operator.ProjectTimeline
		_, body := fetch(t, r.AdminURL()+"/timeline?project="+project)
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		for _, e := range answer.Events {
			lines = append(lines, strings.TrimSpace(e.ID+" "+e.What+" "+e.Peer))
		}
		return lines
	}
	host, joiner, _ := r.match(4)
	want := []string{
		joiner.ID.String() + " reserved " + host.ID.String(), host.ID.String() + " joined " + joiner.ID.String(),
		host.ID.String() + " code", host.ID.String() + " reserved",
	}
	if got := timeline("game"); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) ||
		got[len(got)-1] != want[3] {
		t.Errorf("game:\n%q, want\n%q", got, want)
	}
	if got, want := timeline("other"), []string{other.ID.String() + " reserved"}; !slices.Equal(got, want) {
		t.Errorf("other: %q, want %q", got, want)
	}
	for range 3 {
		if _, err := client.Redeem(t.Context(), r.caller(secret), "7BCDFG"); err == nil {
			t.Error("an unknown code was accepted")
		}
		if _, err := client.Redeem(t.Context(), r.caller("no-such-token-0123"), "7BCDFG"); err == nil {
			t.Error("an unknown token was accepted")
		}
	}
	got := r.operator.status.history.Timeline().OfProject("game", 1)
	if len(got) != 1 || got[0].Kind.String() != "call refused" || got[0].Count != 3 || !strings.HasPrefix(got[0].Reason, "join: 404 ") {
		t.Errorf("refused calls: %+v", got)
	}
	if got := r.operator.status.history.Timeline().OfProject("", 1); len(got) != 0 {
		t.Errorf("events of no project: %+v", got)
	}
	if err := r.relay.engine.End(t.Context(), host.ID); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, time.Minute, "the end in the timeline",
		func() bool { return slices.Contains(timeline("game"), host.ID.String()+" ended") })
	testkit.Within(t, time.Minute, "the host to be forgotten", func() bool {
		return r.operator.status.history.Len() == 2 // of the joiner, and of the other project
	})
}

// TestWhyAfterRestart: a relay knows the codes and the names of what comes back, and says of the
// rest that it does not know.
func TestWhyAfterRestart(t *testing.T) {
	t.Parallel()
	c := local()
	const long = 10 * time.Minute
	c.IdleTimeout, c.HostAloneTimeout, c.BindTimeout = long, long, long
	o := options(c, Serve)
	o.Files.Allocations = filepath.Join(t.TempDir(), "allocations")
	before := whyRig{start(t, o), t}
	host, one, code := before.match(4)
	two := before.join(code)
	idle := before.join(code) // never linked
	ended, _, _ := before.match(4)
	name := before.why(host.ID.String()).Player
	clients := map[proto.AllocationID]*rawClient{}
	for _, ticket := range []client.Ticket{host, one, two, idle} {
		clients[ticket.ID] = before.raw(ticket)
	}
	for _, ticket := range []client.Ticket{one, two} {
		before.expect(ticket.ID.String(), "it plays", func() {
			clients[host.ID].bind()
			clients[idle.ID].bind()
			clients[ticket.ID].bind()
			clients[ticket.ID].connect(ticket.HostConnectionData)
		})
	}
	before.expect(idle.ID.String(), "no CONNECT_REQUEST has arrived", clients[idle.ID].bind)
	if err := before.relay.engine.End(t.Context(), ended.ID); err != nil {
		t.Fatal(err)
	}
	before.cancel()
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}

	r := whyRig{start(t, o), t}
	var all []*rawClient
	alive := func() {
		for _, c := range all {
			c.bind()
		}
	}
	back := func(ticket client.Ticket) *rawClient {
		t.Helper()
		ticket.Server = r.relay.engine.Addr()
		c := r.raw(ticket)
		c.nonce = 2
		all = append(all, c)
		testkit.Within(t, time.Minute, "bound again", func() bool {
			alive()
			return slices.ContainsFunc(r.why(ticket.ID.String()).Events, func(e operator.WhyEvent) bool { return e.What == "bound" })
		})
		return c
	}
	r.expect(ended.ID.String(), "nothing is known of it", nil)
	r.expect(code, "it was live before the relay's restart", nil)
	r.expect(one.ID.String(), "it was live before the relay's restart", nil)
	for id, want := range map[proto.AllocationID]string{host.ID: "host", one.ID: "", ended.ID: ""} {
		if y := r.why(id.String()); y.Role != want || y.Known != (id != ended.ID) {
			t.Errorf("before it comes back: %+v, want role %q", y, want)
		}
	}
	back(one)
	r.expect(one.ID.String(), "but its host has not", alive)
	hostClient := back(host)
	r.expect(code, "2 of the players that were linked before are not linked again", alive)
	r.expect(one.ID.String(), "a link that it had comes back with the host's next message", alive)
	back(idle)
	r.expect(idle.ID.String(), "without a link, and no CONNECT_REQUEST has arrived since", alive)
	y := r.why(code)
	if y.Player != name || name == "" || len(y.Players) != 2 || y.Players[0].Player != name {
		t.Errorf("the names are lost: %+v, want player %q", y, name)
	}
	if events := r.operator.status.history.Timeline().OfProject("game", 10); len(events) == 0 {
		t.Error("the project has no events")
	}
	hostClient.relay(one.ID) // Once: another one before the link is back is refused, which is said for a minute.
	r.expect(one.ID.String(), "it plays: bound, and linked", alive)
	r.expect(code, "it plays: bound, and linked", alive)
	r.expect(code, "1 of the players that were linked before the relay's restart are not linked again", alive)
}

// TestWhyPlayerLimit: a join that a player's limit refuses is explained at its other allocation
// and at the host.
func TestWhyPlayerLimit(t *testing.T) {
	t.Parallel()
	set := local()
	set.PlayerHosts, set.IdleTimeout = 1, time.Minute // and two joins
	const backend = "the-token-of-a-backend"
	set.Tokens = append(set.Tokens, config.Token{Secret: backend, Project: "game", Environment: "test", Kind: "server"})
	r := whyRig{start(t, options(set, Serve)), t}
	host, _, code := r.match(4)
	ann := api.JoinRequest{JoinCode: code, Player: "ann"}
	var newest api.Allocation
	for range 2 {
		var err error
		if newest, err = r.caller(backend).JoinFor(t.Context(), ann); err != nil {
			t.Fatal(err)
		}
		dialler{running: r.running}.join(t, newest, "udp")
	}
	for range 2 {
		var problem *api.Problem
		if _, err := r.caller(backend).JoinFor(t.Context(), ann); !errors.As(err, &problem) || problem.Status != http.StatusTooManyRequests {
			t.Fatalf("a third join: %v", err)
		}
	}
	const because = "ago): the player has as many live joins at this relay as one may (twice player_hosts)"
	for id, want := range map[string]string{
		newest.AllocationID: "; a further reservation of its player was refused ", host.ID.String(): "; a player could not join it ",
	} {
		if y := r.why(id); !strings.Contains(y.Because, want) || !strings.Contains(y.Because, because) {
			t.Errorf("%q, want %q and %q", y.Because, want, because)
		}
	}
	if got := r.relay.engine.Stats().Refused; got["player_joiners"] != 2 {
		t.Errorf("counted %v", got)
	}
}

// TestWhyLongName: of a player whose name does not fit into its connection data the beginning is
// known after a restart, with a mark, the console finds it by the whole name and by no other one
// that begins so, and no webhook has a part of a name.
func TestWhyLongName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ project, environment, begin string }{
		"some room": {strings.Repeat("p", 36), strings.Repeat("e", 36), strings.Repeat("n", 40)},
		"no room":   {strings.Repeat("p", 56), strings.Repeat("e", 56), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			player := strings.Repeat("n", 50)
			h := &recorder{}
			program := httptest.NewServer(h)
			defer program.Close()
			file := filepath.Join(t.TempDir(), "secret")
			if err := os.WriteFile(file, []byte(hookSecret), 0o600); err != nil {
				t.Fatal(err)
			}
			set := local()
			set.Tokens = []config.Token{{Secret: secret, Project: c.project, Environment: c.environment, Kind: "player", Player: player}}
			set.WebhookURL, set.WebhookSecretFile = program.URL+"/events", file
			o := options(set, Serve)
			o.Files.Allocations = filepath.Join(t.TempDir(), "allocations")
			before := whyRig{start(t, o), t}
			host, _, _ := before.match(4)
			before.expect(host.ID.String(), "no player is linked", before.raw(host).bind)
			if y := before.why(host.ID.String()); y.Player != player || strings.Contains(y.Because, "cut") {
				t.Errorf("before the restart: %+v", y)
			}
			before.cancel()
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}

			r := whyRig{start(t, o), t}
			host.Server = r.relay.engine.Addr()
			again := r.raw(host)
			again.nonce = 2
			r.expect(host.ID.String(), "its player's name is cut", again.bind)
			if y := r.why(host.ID.String()); y.Player != c.begin+"…" {
				t.Errorf("after the restart: player %q", y.Player)
			}
			for search, want := range map[string]bool{player: true, player + "n": false} {
				if _, body := fetch(t, r.AdminURL()+"/matches?q="+search); strings.Contains(body, host.ID.String()) != want {
					t.Errorf("a search for %q found %s", search, body)
				}
			}
			if err := r.relay.engine.End(t.Context(), host.ID); err != nil {
				t.Fatal(err)
			}
			testkit.Within(t, time.Minute, "the end reported", func() bool {
				return slices.ContainsFunc(h.of(hooks.Ended, host.ID.String()), func(e hooks.Event) bool { return e.Player == "" })
			})
		})
	}
}
