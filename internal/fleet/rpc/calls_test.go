package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

func TestCalls(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	remote, ctx := x.remote(), testContext(t)
	ask := testHost()
	ask.Address = netip.MustParseAddr("2001:db8::1")
	ask.Tenant.Project = `quoted "<&>" ` + "\u2028" + ` and long enough` // every escape of JSON
	host, err := remote.ReserveHost(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	joinerAsk := alloc.JoinerRequest{
		Caller:     alloc.Caller{Individual: true, Tag: 1 << 63, Tenant: ask.Tenant, Address: netip.MustParseAddr("198.18.0.1")},
		PlayerHash: alloc.PlayerHash{9}, Host: host.ID,
	}
	joiner, err := remote.ReserveJoiner(ctx, joinerAsk)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.KeepCode(ctx, host.ID, "6789BC"); err != nil {
		t.Fatal(err)
	}
	d, err := remote.Describe(ctx, joiner.ID)
	if err != nil {
		t.Fatal(err)
	}
	migration := alloc.MigrationRequest{
		Caller:     alloc.Caller{Tenant: ask.Tenant, Address: netip.MustParseAddr("2001:db8::1")},
		PlayerHash: alloc.PlayerHash{8}, Host: host.ID, Code: "6789BC",
	}
	for i := range migration.Ticket {
		migration.Ticket[i] = byte(255 - i)
	}
	x.relay.Left = host.ID
	candidate, err := remote.MigrateHost(ctx, migration)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := remote.Describe(ctx, candidate.ID); err != nil || d.Code != "6789BC" {
		t.Errorf("a candidate is described as %+v, %v", d, err)
	}
	leave := alloc.LeaveRequest{
		Caller: alloc.Caller{Tenant: ask.Tenant}, PlayerHash: ask.PlayerHash, Host: host.ID, Proof: alloc.ConnectionData{2},
	}
	if err := remote.LeaveHost(ctx, leave); err != nil {
		t.Fatal(err)
	}
	x.relay.Lock()
	defer x.relay.Unlock()
	if want := x.relay.Live[joiner.ID]; d != want {
		t.Errorf("described %+v, want %+v", d, want)
	}
	if !reflect.DeepEqual(x.relay.Migrations, []alloc.MigrationRequest{migration}) {
		t.Errorf("asked %+v", x.relay.Migrations)
	}
	if !reflect.DeepEqual(x.relay.Leaves, []alloc.LeaveRequest{leave}) {
		t.Errorf("asked %+v", x.relay.Leaves)
	}
	if !reflect.DeepEqual(x.relay.Hosts, []alloc.HostRequest{ask}) || !reflect.DeepEqual(x.relay.Joiners, []alloc.JoinerRequest{joinerAsk}) {
		t.Errorf("asked %+v and %+v", x.relay.Hosts, x.relay.Joiners)
	}
	if x.relay.Codes[host.ID] != "6789BC" {
		t.Errorf("code %q", x.relay.Codes[host.ID])
	}
	for _, res := range []alloc.Reservation{host, joiner, candidate} {
		if res.Region != "north" || !reflect.DeepEqual(res.Endpoints, x.relay.Endpoints) {
			t.Errorf("region %q, endpoints %v", res.Region, res.Endpoints)
		}
		if res.Key == (proto.Key{}) || res.ConnectionData == (alloc.ConnectionData{}) || res.HostConnectionData == (alloc.ConnectionData{}) {
			t.Error("a secret is empty")
		}
	}
	if st := x.server.Stats(); st.Answered != 7 || st.Reserved != 3 || len(st.Refused) != 0 || st.NotAfter.IsZero() {
		t.Errorf("counts %+v", st)
	}
	if st := x.dialer.Stats(); st.Relays != 1 || st.Dialed != 1 || st.Lost != 0 {
		t.Errorf("counts %+v", st)
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	remote := x.remote()
	host, err := x.remote().ReserveHost(testContext(t), testHost())
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.End(testContext(t), host.ID); err != nil {
		t.Fatal(err)
	}
	if err := remote.End(testContext(t), host.ID); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("ended twice: %v", err)
	}
	if made, live := x.relay.Count(); made != 1 || live != 0 {
		t.Errorf("%d reservations were made and %d are left, want 1 and 0", made, live)
	}
}

// notCarried are the fields of requests that the API uses to choose a relay and does
// not send.
var notCarried = []string{"HostRequest.Region", "Caller.Regions", "Caller.Server"}

func TestRequestsAreCarried(t *testing.T) {
	t.Parallel()
	carried := map[string][]string{
		"HostRequest":   {"Caller", "PlayerHash", "MaxConnections"},
		"JoinerRequest": {"Caller", "PlayerHash", "Host"},
		"Reservation":   {"ID", "Key", "ConnectionData", "HostConnectionData", "Endpoints", "Region"},
		"Description":   {"Tenant", "Player", "Role", "Bound", "Code"},
		"Tenant":        {"Project", "Environment"},
		"Caller":        {"Tenant", "Player", "Individual", "Tag", "Address"},

		"MigrationRequest": {"Caller", "PlayerHash", "Host", "Ticket", "Code"},
		"LeaveRequest":     {"Caller", "PlayerHash", "Host", "Proof"},
	}
	for _, v := range []any{alloc.HostRequest{}, alloc.JoinerRequest{}, alloc.Reservation{}, alloc.Description{}, alloc.Tenant{},
		alloc.Caller{}, alloc.MigrationRequest{}, alloc.LeaveRequest{}} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			name := typ.Field(i).Name
			if !slices.Contains(carried[typ.Name()], name) && !slices.Contains(notCarried, typ.Name()+"."+name) {
				t.Errorf("%s.%s is not carried", typ.Name(), name)
			}
		}
	}
}

// notARelays are the errors that no relay returns: those of an API process's store, its choice of a relay and
// its service, of hooks and quotas, and of settings.
var notARelays = []string{"ErrStoreUnavailable", "ErrNoRelay", "ErrHostProof", "ErrAdmissionUnavailable", "ErrProjectQuota",
	"ErrProjectInactive", "ErrDenied", "ErrTenantName", "ErrConfig", "ErrInHook"}

// errorNames returns the errors that package alloc declares.
func errorNames(t *testing.T) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../../alloc/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Err") {
			names = append(names, spec.Names[0].Name)
		}
		return true
	})
	return names
}

func TestErrorNames(t *testing.T) {
	t.Parallel()
	sentinels := map[string]error{
		"ErrNotFound": alloc.ErrNotFound, "ErrCodeNotFound": alloc.ErrCodeNotFound,
		"ErrCodeMalformed": alloc.ErrCodeMalformed, "ErrMaxConnections": alloc.ErrMaxConnections,
		"ErrRegion": alloc.ErrRegion, "ErrFull": alloc.ErrFull, "ErrUnavailable": alloc.ErrUnavailable,
		"ErrDraining": alloc.ErrDraining, "ErrOutstanding": alloc.ErrOutstanding, "ErrPlayerLimit": alloc.ErrPlayerLimit,
		"ErrMigration": alloc.ErrMigration, "ErrHostPresent": alloc.ErrHostPresent,
	}
	names := slices.DeleteFunc(errorNames(t), func(name string) bool { return slices.Contains(notARelays, name) })
	if got := slices.Sorted(maps.Keys(sentinels)); !slices.Equal(got, slices.Sorted(slices.Values(names))) {
		t.Fatalf("package alloc has the errors %v, and this test %v", names, got)
	}
	sentinels["ErrTenantName"] = alloc.ErrTenantName
	x := startTestCluster(t)
	remote := x.remote()
	for name, want := range sentinels {
		x.relay.Fail(fmt.Errorf("deep inside: %w", want))
		_, hostErr := remote.ReserveHost(testContext(t), testHost())
		_, describeErr := remote.Describe(testContext(t), proto.AllocationID{1})
		_, migrateErr := remote.MigrateHost(testContext(t), alloc.MigrationRequest{
			Host: proto.AllocationID{1}, Caller: alloc.Caller{Tenant: testHost().Tenant},
		})
		for _, err := range []error{hostErr, describeErr, migrateErr, remote.KeepCode(testContext(t), proto.AllocationID{1}, "")} {
			if !errors.Is(err, want) {
				t.Errorf("%s arrives as %v", name, err)
			}
			for other, e := range sentinels {
				if e != want && errors.Is(err, e) {
					t.Errorf("%s arrives as %s too", name, other)
				}
			}
		}
	}
	if st := x.dialer.Stats(); st.Lost != 0 {
		t.Errorf("%d refusals were taken for lost answers", st.Lost)
	}
}

// TestMigrationErrors checks that the time to wait and its reason arrive with the error, and the
// host that there is, also with that of a reservation, and that others are no answer of a relay.
func TestMigrationErrors(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	remote, host := x.remote(), proto.AllocationID{1}
	for _, want := range []error{
		alloc.RefusedError{Err: alloc.ErrMigration},
		alloc.RefusedError{Err: alloc.ErrMigration, Reason: "the host was heard", RetryAfter: 1500 * time.Millisecond},
		alloc.RefusedError{Err: alloc.ErrHostPresent},
		alloc.RefusedError{Err: alloc.ErrHostPresent, Host: proto.AllocationID{0xff}},
	} {
		x.relay.Fail(fmt.Errorf("deep inside: %w", want))
		_, err := remote.MigrateHost(testContext(t), alloc.MigrationRequest{Caller: alloc.Caller{Tenant: testHost().Tenant}, Host: host})
		_, joinErr := remote.ReserveJoiner(testContext(t), alloc.JoinerRequest{Caller: alloc.Caller{Tenant: testHost().Tenant}, Host: host})
		for _, err := range []error{err, joinErr} {
			if got, _ := errors.AsType[alloc.RefusedError](err); got != want || errors.Is(err, alloc.ErrUnavailable) {
				t.Errorf("%v arrives as %v", want, err)
			}
		}
	}
	if st := x.server.Stats(); st.Refused["migration"] != 4 || st.Refused["host-present"] != 4 || x.dialer.Stats().Lost != 0 {
		t.Errorf("refusals %v, %+v", st.Refused, x.dialer.Stats())
	}
	for _, body := range []string{
		`{"error":"host-present","host":"x"}`, `{"error":"migration","retryAfterMs":-1}`,
		`{"error":"migration","retryAfterMs":9223372036854775807}`,
	} {
		unsure, err := (&relayConn{}).parseRefusal(409, []byte(body))
		if wantUnavailable(t, err, errAnswer); !unsure {
			t.Error("an unknown answer is taken for a refusal")
		}
	}
}

// TestMigrationVersions checks both mixtures of versions: a relay without the call, and an
// API process that knows neither the error nor its members.
func TestMigrationVersions(t *testing.T) {
	t.Parallel()
	l := relayConn{}
	_, err := l.parseRefusal(404, []byte(`{"error":"unknown-call","detail":"there is no such call in this version"}`))
	wantUnavailable(t, err)
	_, err = l.parseRefusal(409, []byte(`{"error":"later-than-this","detail":"","host":"x","more":1}`))
	wantUnavailable(t, err)
	if body, _ := json.Marshal(refusalOf(alloc.ErrFull).answer()); strings.Contains(string(body), "reason") ||
		strings.Contains(string(body), "host") {
		t.Errorf("another refusal has their members: %s", body)
	}
}

// TestPlayerLimits: the limit arrives with the error; a relay of an earlier version does not name it,
// and an API process of an earlier version knows the error.
func TestPlayerLimits(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	want := alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "joiners_per_host"}
	x.relay.Fail(fmt.Errorf("deep inside: %w", want))
	_, err := x.remote().ReserveJoiner(testContext(t), alloc.JoinerRequest{
		Caller: alloc.Caller{Tenant: testHost().Tenant}, Host: proto.AllocationID{1},
	})
	if got, _ := errors.AsType[alloc.RefusedError](err); got != want {
		t.Errorf("%v arrives as %v", want, err)
	}
	unsure, err := (&relayConn{}).parseRefusal(429, []byte(`{"error":"player-limit","detail":""}`))
	if unsure || !errors.Is(err, alloc.ErrPlayerLimit) {
		t.Errorf("of an earlier version: %v", err)
	}
	if body, _ := json.Marshal(refusalOf(want).answer()); !strings.HasPrefix(string(body), `{"error":"player-limit","detail":`) {
		t.Errorf("to an earlier version: %s", body)
	}
}

// TestUnknownErrors checks that the caller gets alloc.ErrUnavailable for an unknown
// error, that the text stays in the relay's log, and that a panic ends only its call.
func TestUnknownErrors(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	var fail error
	x.relay.Before = func(context.Context) {
		if fail == nil {
			panic("what no caller may read")
		}
	}
	start(t, x.server.Run)
	x.startDialer(t)
	for _, fail = range []error{errors.New("what no caller may read"), nil} {
		x.relay.Fail(fail)
		_, err := x.remote().ReserveHost(testContext(t), testHost())
		wantUnavailable(t, err)
		if strings.Contains(err.Error(), "no caller") {
			t.Errorf("the caller reads %v", err)
		}
	}
	if n := strings.Count(x.log.String(), "what no caller may read"); n < 2 {
		t.Errorf("the log has %d of 2 faults: %s", n, x.log)
	}
	if st := x.server.Stats(); st.Refused["internal"] != 2 || st.Running != 0 {
		t.Errorf("counts %+v", st)
	}
}

// TestUnsendableRequests checks that names which JSON would change are not sent, and
// that invalid relays are not called.
func TestUnsendableRequests(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	for _, project := range []string{"\xff", "NUL\x00", strings.Repeat("x", alloc.MaxTenantName+1)} {
		r := testHost()
		r.Tenant.Project = project
		_, err := x.remote().ReserveHost(testContext(t), r)
		_, joinErr := x.remote().ReserveJoiner(testContext(t), alloc.JoinerRequest{
			Caller: alloc.Caller{Tenant: r.Tenant}, Host: proto.AllocationID{1},
		})
		if !errors.Is(err, alloc.ErrTenantName) || !errors.Is(joinErr, alloc.ErrTenantName) {
			t.Errorf("project %q: %v, %v", project, err, joinErr)
		}
	}
	for _, n := range []placement.Node{{Relay: testRelay, Control: "nowhere"}, {Control: "127.0.0.1:1"},
		{Relay: testRelay, Control: "127.0.0.1:1/x?y"}} {
		_, err := x.dialer.Relay(n).Describe(testContext(t), proto.AllocationID{1})
		wantUnavailable(t, err)
	}
	if made, _ := x.relay.Count(); made != 0 || x.dialer.Stats().Lost != 0 {
		t.Errorf("%d reservations, %+v", made, x.dialer.Stats())
	}
}

func TestStrict(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	c := x.apiClient(t)
	with := func(old, other string) string { return strings.Replace(testHostOf4, old, other, 1) }
	headers := func(deadline, k string) map[string]string {
		return map[string]string{headerDeadline: deadline, headerKey: k}
	}
	good := newKey().String()
	tests := []struct {
		name   string
		path   string
		header map[string]string
		body   string
		want   string
	}{
		{"another path", "/cluster/v2/reserve-host", headers("1000", good), testHostOf4, "unknown-call"},
		{"no deadline", pathReserveHost, headers("", good), testHostOf4, "malformed"},
		{"a deadline of 0", pathReserveHost, headers("0", good), testHostOf4, "malformed"},
		{"a deadline too long", pathReserveHost, headers("10001", good), testHostOf4, "malformed"},
		{"a signed deadline", pathReserveHost, headers("+5", good), testHostOf4, "malformed"},
		{"no key", pathReserveHost, headers("1000", ""), testHostOf4, "malformed"},
		{"a key too short", pathReserveHost, headers("1000", good[1:]), testHostOf4, "malformed"},
		{"a key in upper case", pathReserveHost, headers("1000", "ABCDEF"+good[6:]), testHostOf4, "malformed"},
		{"no body", pathReserveHost, headers("1000", good), "", "malformed"},
		{"no object", pathReserveHost, headers("1000", good), "null", "malformed"},
		{"an array", pathReserveHost, headers("1000", good), "[" + testHostOf4 + "]", "malformed"},
		{"two objects", pathReserveHost, headers("1000", good), testHostOf4 + testHostOf4, "malformed"},
		{"a member twice", pathReserveHost, headers("1000", good), with("{", `{"project":"x",`), "malformed"},
		{"a member in another case", pathReserveHost, headers("1000", good), with("project", "Project"), "malformed"},
		{"a member less", pathReserveHost, headers("1000", good), with(`"project":"game",`, ""), "malformed"},
		{"a member that is null", pathReserveHost, headers("1000", good), with(`"game"`, "null"), "malformed"},
		{"another type", pathReserveHost, headers("1000", good), with(":4", `:"4"`), "malformed"},
		{"a number too large", pathReserveHost, headers("1000", good), with(":4", `:4e99`), "malformed"},
		{"half a player", pathReserveHost, headers("1000", good), with(testPlayer, testPlayer[2:]), "malformed"},
		{"not UTF-8", pathReserveHost, headers("1000", good), with("game", "\xff"), "malformed"},
		{"a NUL in a name", pathReserveHost, headers("1000", good), with("game", `\u0000`), "tenant-name"},
		{"too large", pathReserveHost, headers("1000", good), with("game", strings.Repeat("x", maxBody)), "too-large"},
		{"an id in upper case", pathDescribe, headers("1000", ""), `{"id":"10111213-1415-1617-1819-1A1B1C1D1E1F"}`, "malformed"},
		{"an id without dashes", pathDescribe, headers("1000", ""), `{"id":"101112131415161718191a1b1c1d1e1f"}`, "malformed"},
		{"dashes elsewhere", pathDescribe, headers("1000", ""), `{"id":"1-0-1-1121314151617181-91a1b1c1d1e1f"}`, "malformed"},
		{"a drain that says half", pathDrain, headers("1000", ""), `{"threshold":0}`, "malformed"},
		{"a drain that says null", pathDrain, headers("1000", ""), `{"deadlineMs":null,"threshold":0}`, "malformed"},
		{"a drain that is too long", pathDrain, headers("1000", ""), `{"deadlineMs":604800001,"threshold":0}`, "malformed"},
		{"a deadline before now", pathDrain, headers("1000", ""), `{"deadlineMs":-2,"threshold":0}`, "malformed"},
		{"a threshold below none", pathDrain, headers("1000", ""), `{"deadlineMs":0,"threshold":-2}`, "malformed"},
		{"a threshold too large", pathDrain, headers("1000", ""), `{"deadlineMs":0,"threshold":67108865}`, "malformed"},
		{"kick without id", pathKick, headers("1000", ""), `{}`, "malformed"},
		{"two to close", pathClose, headers("1000", ""), `{"id":"10111213-1415-1617-1819-1a1b1c1d1e1f","id":"x"}`, "malformed"},
		{"an address that is none", pathReserveHost, headers("1000", good), with("198.18.0.1", "198.18.0.1:80"), "malformed"},
		{"a ticket too short", pathMigrate, headers("1000", good), strings.Replace(testMigration, "AAAA", "", 1), "malformed"},
		{"a ticket too long", pathMigrate, headers("1000", good), strings.Replace(testMigration, "AAAA", "AAAAAAAA", 1), "malformed"},
		{"a ticket that is not base64", pathMigrate, headers("1000", good), strings.Replace(testMigration, "AAAA", "A!AA", 1), "malformed"},
		{"a migration without a ticket", pathMigrate, headers("1000", good), strings.Replace(testMigration, "ticket", "Ticket", 1), "malformed"},
		{"half a player of a migration", pathMigrate, headers("1000", good), strings.Replace(testMigration, testPlayer, testPlayer[2:], 1),
			"malformed"},
		{"a migration of no host", pathMigrate, headers("1000", good), strings.Replace(testMigration, "10111213-", "", 1), "malformed"},
		{"a migration of no tenant", pathMigrate, headers("1000", good), strings.Replace(testMigration, "game", `\u0000`, 1), "tenant-name"},
		{"a migration without a key", pathMigrate, headers("1000", ""), testMigration, "malformed"},
		{"a migration from nowhere", pathMigrate, headers("1000", good), strings.Replace(testMigration, `"clientAddress":""`,
			`"clientAddress":"x"`, 1), "malformed"},
		{"half a player that leaves", pathLeave, headers("1000", ""), strings.Replace(testLeave, testPlayer, testPlayer[2:], 1), "malformed"},
		{"half a proof", pathLeave, headers("1000", ""), strings.Replace(testLeave, "}", `,"proof":"AAAA"}`, 1), "malformed"},
		{"no host that leaves", pathLeave, headers("1000", ""), strings.Replace(testLeave, "10111213-", "", 1), "malformed"},
		{"no tenant that leaves", pathLeave, headers("1000", ""), strings.Replace(testLeave, "game", `\u0000`, 1), "tenant-name"},
		{"a key that is none", pathCancel, headers("1000", ""), `{"keys":["` + good + `","x"]}`, "malformed"},
		{"too many keys", pathCancel, headers("1000", ""), `{"keys":["` + strings.Repeat(good+`","`, maxBatch) + good + `"]}`, "malformed"},
	}
	for _, tt := range tests {
		status, body := x.post(t, c, tt.path, tt.header, tt.body)
		if status < 400 || status >= 500 || errorNameOf(t, body) != tt.want {
			t.Errorf("%s: %d %s, want %s", tt.name, status, body, tt.want)
		}
	}
	if made, _ := x.relay.Count(); made != 0 || x.server.Stats().OperatorCalls != 0 {
		t.Errorf("%d reservations were made, %+v", made, x.server.Stats())
	}
	x.relay.Left = proto.AllocationID{0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f}
	player := alloc.PlayerHash{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	x.relay.Live[x.relay.Left] = alloc.Description{Tenant: testHost().Tenant.Hash(), Player: player}
	for path, call := range map[string]string{
		pathReserveHost: testHostOf4,
		pathUndrain:     `{"of a later version":[{"more":null}]}`, pathMigrate: testMigration, pathLeave: testLeave,
	} {
		if status, body := x.post(t, c, path, headers("10000", newKey().String()), call); status != 200 {
			t.Errorf("what is exactly a call: %s: %d %s", path, status, body)
		}
	}
}

// TestOlderRelay: a relay of a version that announces no capabilities gets calls of the first
// version, which refuses all other members, and no others.
func TestOlderRelay(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	old := x.node()
	old.Version, old.Capabilities = "v0.1.0", nil
	remote := x.dialer.Relay(old)
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	if _, err := remote.ReserveHost(testContext(t), alloc.HostRequest{
		Caller: alloc.Caller{Tenant: tenant, Player: "alice", Individual: true, Tag: 1 << 63}, MaxConnections: 4,
	}); err != nil {
		t.Fatal(err)
	}
	x.relay.Lock()
	if got := x.relay.Hosts[0]; got.Player != "" || got.Individual || got.Tag != 0 {
		t.Errorf("it got %+v", got)
	}
	x.relay.Unlock()
	_, err := remote.MigrateHost(testContext(t), alloc.MigrationRequest{Caller: alloc.Caller{Tenant: tenant}})
	for _, err := range []error{err, remote.LeaveHost(testContext(t), alloc.LeaveRequest{Caller: alloc.Caller{Tenant: tenant}})} {
		if !errors.Is(err, alloc.ErrUnavailable) || !strings.Contains(err.Error(), `of version "v0.1.0" cannot do "migration" yet`) {
			t.Errorf("a call that it does not know: %v", err)
		}
	}
}
