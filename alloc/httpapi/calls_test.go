package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

func TestHostAndJoiner(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	id := x.allocate(t, tokenAnna)
	code := x.code(t, tokenAnna, id)
	if again := x.code(t, tokenAnna, strings.ToUpper(id)); again != code {
		t.Errorf("second code %q, first %q", again, code)
	}
	for _, c := range []string{code, strings.ToLower(code)} {
		rec := x.post("/v1/join", tokenBert, `{"joinCode":"`+c+`"}`)
		wantStatus(t, rec, http.StatusOK)
		if got := sdkAllocation(t, rec, true); got == id {
			t.Error("the joiner was given the host's allocation")
		}
		if got := rec.Header().Get("Content-Type"); got != "application/json" {
			t.Errorf("Content-Type = %q", got)
		}
		if got := rec.Header().Get("Cache-Control"); got != "no-store" {
			t.Errorf("Cache-Control = %q", got)
		}
	}
}

func TestRegions(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	rec := x.do(newRequest(http.MethodGet, "/v1/regions", tokenAnna, ""))
	wantStatus(t, rec, http.StatusOK)
	o := sdkObject(t, rec.Body.Bytes())
	sdkMeta(o, rec)
	regions := o.object("data").list("regions")
	if len(regions) != 2 || regions[0].text("id") != "local" || regions[1].text("description") != "There" {
		t.Errorf("regions: %s", rec.Body)
	}
}

func TestRegionIsTheOneAskedForOrTheDefault(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	tests := map[string]string{
		`{"maxConnections":1}`:                 "local",
		`{"maxConnections":1,"region":null}`:   "local",
		`{"maxConnections":1,"region":""}`:     "local",
		`{"maxConnections":1,"region":"far"}`:  "far",
		`{"maxConnections":100,"unknown":[1]}`: "local",
	}
	for body, want := range tests {
		rec := x.post("/v1/allocate", tokenAnna, body)
		wantStatus(t, rec, http.StatusCreated)
		sdkAllocation(t, rec, false)
		a := sdkObject(t, rec.Body.Bytes()).object("data").object("allocation")
		if got := a.text("region"); got != want {
			t.Errorf("%s: region %q, want %q", body, got, want)
		}
	}
}

// TestHint: a player's address goes with its request, as far as it is its own;
// a backend's does not.
func TestHint(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	code := x.code(t, tokenAnna, x.allocate(t, tokenAnna))
	for _, tt := range []struct{ token, remote, forwarded, want string }{
		{tokenAnna, "192.0.2.1:5", "", "192.0.2.1"},
		{tokenAnna, "[2001:db8:1:2:3::4]:5", "", "2001:db8:1::"},
		{tokenAnna, "10.1.1.1:5", "198.51.100.1", "198.51.100.1"},
		{tokenAnna, "10.1.1.1:5", "", "invalid IP"},
		{tokenServer, "192.0.2.1:5", "", "invalid IP"},
	} {
		r := newRequest(http.MethodPost, "/v1/allocate", tt.token, `{"maxConnections":4,"region":"far"}`)
		r.RemoteAddr = tt.remote
		if tt.forwarded != "" {
			r.Header.Set("X-Forwarded-For", tt.forwarded)
		}
		wantStatus(t, x.do(r), http.StatusCreated)
		got := x.relay.Hosts[len(x.relay.Hosts)-1]
		if got.Address.String() != tt.want || got.Region != "far" {
			t.Errorf("%s from %s: asked for %+v, want the hint %s", tt.token, tt.remote, got, tt.want)
		}
		r = newRequest(http.MethodPost, "/v1/join", tt.token, `{"joinCode":"`+code+`"}`)
		r.RemoteAddr = tt.remote
		if tt.forwarded != "" {
			r.Header.Set("X-Forwarded-For", tt.forwarded)
		}
		wantStatus(t, x.do(r), http.StatusOK)
		if got := x.relay.Joiners[len(x.relay.Joiners)-1].Address; got.String() != tt.want {
			t.Errorf("%s from %s: joined from %v, want %s", tt.token, tt.remote, got, tt.want)
		}
	}
}

// TestPlayerAddress: a backend may name the address of its player, and a player may not name
// one, which could be a victim's.
func TestPlayerAddress(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	code := x.code(t, tokenAnna, x.allocate(t, tokenAnna))
	for _, tt := range []struct {
		token, address, want string
		status               int
	}{
		{tokenServer, "203.0.113.9", "203.0.113.9", http.StatusCreated},
		{tokenServer, "::ffff:203.0.113.9", "203.0.113.9", http.StatusCreated},
		{tokenServer, "2001:db8:1:2:3::4", "2001:db8:1:2:3::4", http.StatusCreated},
		{tokenServer, "", "invalid IP", http.StatusCreated},
		{tokenServer, "fe80::1%eth0", "", http.StatusBadRequest},
		{tokenServer, "203.0.113.0/24", "", http.StatusBadRequest},
		{tokenAnna, "203.0.113.9", "", http.StatusBadRequest},
	} {
		for path, members := range map[string]string{"/v1/allocate": `"maxConnections":4`, "/v1/join": `"joinCode":"` + code + `"`} {
			hosts, callers := len(x.relay.Hosts), len(x.relay.Joiners)
			rec := x.post(path, tt.token, `{`+members+`,"playerAddress":"`+tt.address+`"}`)
			if path == "/v1/join" && tt.status == http.StatusCreated {
				wantStatus(t, rec, http.StatusOK)
				if got := x.relay.Joiners[len(x.relay.Joiners)-1].Address.String(); got != tt.want {
					t.Errorf("%q: joined from %s, want %s", tt.address, got, tt.want)
				}
				continue
			}
			wantStatus(t, rec, tt.status)
			if tt.status != http.StatusCreated && (len(x.relay.Hosts) != hosts || len(x.relay.Joiners) != callers) {
				t.Errorf("%q of %s was reserved", tt.address, tt.token)
			}
			if tt.status == http.StatusCreated && x.relay.Hosts[len(x.relay.Hosts)-1].Address.String() != tt.want {
				t.Errorf("%q: allocated for %v, want %s", tt.address, x.relay.Hosts[len(x.relay.Hosts)-1].Address, tt.want)
			}
		}
	}
}

// TestEndpointOrder: players take the first endpoint of their type. IPv4 comes first, since hosts
// of Unity bind the family of the first one, unless the call names IPv6 or is a player's join
// that came over IPv6.
func TestEndpointOrder(t *testing.T) {
	t.Parallel()
	const v4, v6 = "192.0.2.9", "2001:db8::9"
	endpoint := func(kind, host string) alloc.ServerEndpoint {
		return alloc.ServerEndpoint{ConnectionType: kind, Network: "udp", Host: host, Port: 7777}
	}
	both := []alloc.ServerEndpoint{
		endpoint("wss", "relay.example.org"), endpoint("wt", v6), endpoint("ws", v6), endpoint("dtls", v6), endpoint("udp", v6),
		endpoint("ws", v4), endpoint("udp", v4), endpoint("dtls", v4), endpoint("wt", v4),
	}
	ipv4First := "udp " + v4 + ", udp " + v6 + ", dtls " + v4 + ", dtls " + v6 + ", ws " + v4 + ", ws " + v6 + ", wss relay.example.org, wt " +
		v4 + ", wt " + v6
	ipv6First := "udp " + v6 + ", udp " + v4 + ", dtls " + v6 + ", dtls " + v4 + ", ws " + v6 + ", ws " + v4 + ", wss relay.example.org, wt " +
		v6 + ", wt " + v4
	only := func(host string) []alloc.ServerEndpoint {
		return []alloc.ServerEndpoint{endpoint("dtls", host), endpoint("udp", host)}
	}
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ff::/48")}
	for _, c := range []struct {
		name, call, token, remote, forwarded, family string
		relay                                        []alloc.ServerEndpoint
		want                                         string
	}{
		{name: "host over IPv4", call: "allocate", remote: "198.51.100.1:1", want: ipv4First},
		{name: "host over IPv6", call: "allocate", remote: "[2001:db8::1]:1", want: ipv4First},
		{name: "host that names IPv6", call: "allocate", remote: "198.51.100.1:1", family: "6", want: ipv6First},
		{name: "host that names IPv4", call: "allocate", remote: "[2001:db8::1]:1", family: "4", want: ipv4First},
		{name: "new host over IPv6", call: "migrate", remote: "[2001:db8::1]:1", want: ipv4First},
		{name: "new host that names IPv6", call: "migrate", remote: "198.51.100.1:1", family: "6", want: ipv6First},
		{name: "join over IPv4", call: "join", remote: "198.51.100.1:1", want: ipv4First},
		{name: "join over mapped IPv4", call: "join", remote: "[::ffff:198.51.100.1]:1", want: ipv4First},
		{name: "join over IPv6", call: "join", remote: "[2001:db8::1]:1", want: ipv6First},
		{name: "join over IPv6 that names IPv4", call: "join", remote: "[2001:db8::1]:1", family: "4", want: ipv4First},
		{name: "join over IPv4 that names IPv6", call: "join", remote: "198.51.100.1:1", family: "6", want: ipv6First},
		{name: "join over IPv6, null", call: "join", remote: "[2001:db8::1]:1", family: "null", want: ipv6First},
		{name: "join over link-local IPv6", call: "join", remote: "[fe80::1%eth0]:1", want: ipv4First},
		{name: "join of IPv4 by an IPv6 proxy", call: "join", remote: "[2001:db8:ff::1]:1", forwarded: "198.51.100.1", want: ipv4First},
		{name: "join of IPv6 by an IPv4 proxy", call: "join", remote: "10.0.0.1:1", forwarded: "2001:db8::1", want: ipv6First},
		{name: "join by a proxy that tells nothing", call: "join", remote: "[2001:db8:ff::1]:1", want: ipv4First},
		{name: "join of a backend", call: "join", token: tokenServer, remote: "[2001:db8::1]:1", want: ipv4First},
		{name: "join of a backend for a player of IPv6", call: "join", token: tokenServer, remote: "198.51.100.1:1",
			family: "6", want: ipv6First},
		{name: "IPv4 relay", call: "join", remote: "[2001:db8::1]:1", relay: only(v4), want: "udp " + v4 + ", dtls " + v4},
		{name: "IPv6 relay", call: "allocate", remote: "198.51.100.1:1", relay: only(v6), want: "udp " + v6 + ", dtls " + v6},
	} {
		x := newFixture(t, Config{TrustedProxies: proxies})
		x.relay.Endpoints = both
		if c.relay != nil {
			x.relay.Endpoints = c.relay
		}
		shared := slices.Clone(x.relay.Endpoints)
		id := x.allocate(t, tokenAnna)
		code := x.code(t, tokenAnna, id)
		body := map[string]string{"allocate": `"maxConnections":4`, "join": `"joinCode":"` + code + `"`}[c.call]
		if c.call == "migrate" {
			host, err := proto.ParseAllocationID(id)
			if err != nil {
				t.Fatal(err)
			}
			x.relay.Left = host
			body = `"joinCode":"` + code + `","hostConnectionData":"` + testTicket + `"`
		}
		if c.family != "" {
			body += `,"family":` + c.family
		}
		r := newRequest(http.MethodPost, "/v1/"+c.call, cmp.Or(c.token, tokenBert), "{"+body+"}")
		r.RemoteAddr = c.remote
		if c.forwarded != "" {
			r.Header.Set("X-Forwarded-For", c.forwarded)
		}
		rec := x.do(r)
		if rec.Code/100 != 2 {
			t.Fatalf("%s: %d %s", c.name, rec.Code, rec.Body)
		}
		var got []string
		for _, e := range sdkObject(t, rec.Body.Bytes()).object("data").object("allocation").list("serverEndpoints") {
			got = append(got, e.text("connectionType")+" "+e.text("host"))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, text, c.want)
		}
		if !slices.Equal(shared, x.relay.Endpoints) {
			t.Errorf("%s: the relay's own list was changed", c.name)
		}
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	const unknownID = "6f1de3a2-5f34-4a3e-9d4c-0a5f3a1b2c3d"
	tests := []struct {
		path, body   string
		status, code int
	}{
		{"/v1/allocate", ``, 400, 15001},
		{"/v1/allocate", `{`, 400, 15001},
		{"/v1/allocate", `null`, 400, 15001},
		{"/v1/allocate", `[]`, 400, 15001},
		{"/v1/allocate", `"maxConnections"`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":4} x`, 400, 15001},
		{"/v1/allocate", "\x1f\x8b\x08\x00", 400, 15001},
		{"/v1/allocate", `{}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":null}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":0}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":-1}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":101}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":1000000000}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":1e9}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":99999999999999999999}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":2.5}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":"4"}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":true}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":4,"region":7}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":4,"region":"moon"}`, 400, 15007},
		{"/v1/allocate", `{"maxConnections":4,"family":5}`, 400, 15001},
		{"/v1/allocate", `{"maxConnections":4,"family":"6"}`, 400, 15001},
		{"/v1/allocate", strings.Repeat("[", 16000), 400, 15001},

		{"/v1/joincode", `{}`, 400, 15001},
		{"/v1/joincode", `{"allocationId":7}`, 400, 15001},
		{"/v1/joincode", `{"allocationId":""}`, 400, 15001},
		{"/v1/joincode", `{"allocationId":"x"}`, 400, 15001},
		{"/v1/joincode", `{"allocationId":"{` + unknownID + `}"}`, 400, 15001},
		{"/v1/joincode", `{"allocationId":"` + strings.ReplaceAll(unknownID, "-", "") + `"}`, 400, 15001},
		{"/v1/joincode", `{"allocationId":"` + unknownID + `"}`, 404, 15008},

		{"/v1/join", `{}`, 400, 15001},
		{"/v1/join", `{"joinCode":null}`, 400, 15001},
		{"/v1/join", `{"joinCode":678999}`, 400, 15001},
		{"/v1/join", `{"joinCode":""}`, 400, 15001},
		{"/v1/join", `{"joinCode":"6789B"}`, 404, 15009},
		{"/v1/join", `{"joinCode":"6789BC","family":0}`, 404, 15009},
		{"/v1/join", `{"joinCode":"6789BC","family":-6}`, 400, 15001},
		{"/v1/join", `{"joinCode":"6789BCDFGHJKL"}`, 404, 15009},
		{"/v1/join", `{"joinCode":"AAAAAA"}`, 404, 15009},
		{"/v1/join", `{"joinCode":"6789O0"}`, 404, 15009},
		{"/v1/join", `{"joinCode":" "}`, 404, 15009},
		{"/v1/join", `{"joinCode":"6789B\u0000"}`, 404, 15009},
		{"/v1/join", `{"joinCode":"6789BC"}`, 404, 15009},
		{"/v1/join", `{"joinCode":"6789bcdfghjk"}`, 404, 15009},
	}
	x := newUnlimitedFixture(t, Config{})
	for _, tt := range tests {
		t.Run(tt.path+" "+tt.body[:min(len(tt.body), 40)], func(t *testing.T) {
			wantProblem(t, x.post(tt.path, tokenAnna, tt.body), tt.status, tt.code)
		})
	}
}

func TestUnknownCodeHasTheWordsThatGamesLookFor(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	rec := x.post("/v1/join", tokenAnna, `{"joinCode":"6789BC"}`)
	wantProblem(t, rec, 404, 15009)
	o := sdkObject(t, rec.Body.Bytes())
	if o.text("title") != "Not Found" || o.text("detail") != "join code not found" {
		t.Errorf("problem: %s", rec.Body)
	}
}

func TestJoinCodeIsTheOwners(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	id := x.allocate(t, tokenAnna)
	body := `{"allocationId":"` + id + `"}`
	for name, token := range map[string]string{
		"another player": tokenBert, "another environment": tokenStaging, "another project's server": tokenOther,
	} {
		t.Run(name, func(t *testing.T) {
			wantProblem(t, x.post("/v1/joincode", token, body), 404, 15008)
		})
	}
	code := x.code(t, tokenServer, id)
	if own := x.code(t, tokenAnna, id); own != code {
		t.Errorf("the server got %q, the owner %q", code, own)
	}
	rec := x.post("/v1/join", tokenBert, `{"joinCode":"`+code+`"}`)
	wantStatus(t, rec, http.StatusOK)
	joiner := sdkAllocation(t, rec, true)
	for _, token := range []string{tokenBert, tokenServer} {
		wantProblem(t, x.post("/v1/joincode", token, `{"allocationId":"`+joiner+`"}`), 404, 15008)
	}
	for _, token := range []string{tokenStaging, tokenOther} {
		wantProblem(t, x.post("/v1/join", token, `{"joinCode":"`+code+`"}`), 404, 15009)
	}
}

func TestEndedHost(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	id := x.allocate(t, tokenAnna)
	code := x.code(t, tokenAnna, id)
	x.relay.Lose()
	wantProblem(t, x.post("/v1/join", tokenBert, `{"joinCode":"`+code+`"}`), 404, 15009)
	wantProblem(t, x.post("/v1/joincode", tokenAnna, `{"allocationId":"`+id+`"}`), 404, 15008)
}

func TestRelayFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err          error
		status, code int
		retry        bool
		detail       string
	}{
		{alloc.ErrFull, 503, 15010, true, "no relay has room"},
		{alloc.ErrDraining, 503, 15010, true, "the relay takes no new allocations"},
		{alloc.ErrUnavailable, 503, 15503, true, "relay unavailable"},
		{alloc.ErrNoRelay, 503, 15503, true, "no relay of the region runs"},
		{fmt.Errorf("canary: %w: dial", alloc.ErrStoreUnavailable), 503, 15503, true, "store unavailable"},
		{fmt.Errorf("canary: %w: dial", alloc.ErrAdmissionUnavailable), 503, 15503, true, "admission unavailable"},
		{context.DeadlineExceeded, 503, 15503, true, "relay unavailable"},
		{errors.New("canary of the inside"), 500, 15500, false, "internal error"},
	}
	for _, tt := range tests {
		t.Run(tt.err.Error(), func(t *testing.T) {
			x := newFixture(t, Config{})
			id := x.allocate(t, tokenAnna)
			code := x.code(t, tokenAnna, id)
			x.relay.Fail(tt.err)
			for path, body := range map[string]string{
				"/v1/allocate": `{"maxConnections":4}`,
				"/v1/joincode": `{"allocationId":"` + id + `"}`,
				"/v1/join":     `{"joinCode":"` + code + `"}`,
			} {
				rec := x.post(path, tokenAnna, body)
				wantProblem(t, rec, tt.status, tt.code)
				if got := rec.Header().Get("Retry-After"); (got != "") != tt.retry {
					t.Errorf("%s: Retry-After = %q", path, got)
				}
				if strings.Contains(rec.Body.String(), "canary") {
					t.Errorf("%s tells about the inside: %s", path, rec.Body)
				}
				if !strings.Contains(rec.Body.String(), `"detail":"`+tt.detail+`"`) {
					t.Errorf("%s does not say %q: %s", path, tt.detail, rec.Body)
				}
			}
			x.relay.Fail(nil) // whatever it was, the code was not lost
			wantStatus(t, x.post("/v1/join", tokenBert, `{"joinCode":"`+code+`"}`), 200)
		})
	}
}

func TestRelayServer(t *testing.T) {
	t.Parallel()
	wss := alloc.ServerEndpoint{ConnectionType: "wss", Host: "relay.example.org", Port: 443}
	six := alloc.ServerEndpoint{ConnectionType: "udp", Host: "2001:db8::1", Port: 6}
	four := alloc.ServerEndpoint{ConnectionType: "udp", Host: "192.0.2.1", Port: 4}
	tests := []struct {
		in   []alloc.ServerEndpoint
		host string
		port int
	}{
		{[]alloc.ServerEndpoint{wss, six, four}, "192.0.2.1", 4},
		{[]alloc.ServerEndpoint{wss, six}, "2001:db8::1", 6},
		{[]alloc.ServerEndpoint{wss}, "relay.example.org", 443},
		{nil, "", 0},
	}
	for _, tt := range tests {
		if got := relayServer(tt.in); got.IPv4 != tt.host || got.Port != tt.port {
			t.Errorf("relayServer(%v) = %+v", tt.in, got)
		}
	}
}
