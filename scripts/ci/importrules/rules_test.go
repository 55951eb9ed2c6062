package importrules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/ferryrelay/ferry"

type source struct {
	name string // with slashes, from the root
	dir  string
	test bool
	file *ast.File

	files *token.FileSet
}

func sources(t *testing.T) []source {
	t.Helper()
	all, err := parseAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d Go files: the test looks in the wrong place", len(all))
	}
	return all
}

// parseAll parses the files once for all tests.
var parseAll = sync.OnceValues(func() (all []source, err error) {
	const root = "../../.."
	fset := token.NewFileSet()
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != root ||
			slices.Contains([]string{"testdata", "out", "node_modules"}, d.Name())) {
			return filepath.SkipDir
		}
		if _, err := os.Stat(filepath.Join(name, "go.mod")); d.IsDir() && err == nil && name != root {
			return filepath.SkipDir // a separate module
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		rel = filepath.ToSlash(rel)
		all = append(all, source{
			name: rel, dir: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"),
			file: file, files: fset,
		})
		return err
	})
	return all, err
})

func (s source) imports() (paths []string) {
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

func within(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }

// rule lists what a package, and all below it that have no rule of their own, may
// import.
type rule struct {
	dir string
	// inside are packages of this module, with all below them.
	inside []string
	// outside are modules, besides the standard library.
	outside []string
	why     string
}

const (
	xnet   = "golang.org/x/net"
	xsys   = "golang.org/x/sys"
	xtime  = "golang.org/x/time"
	uuid   = "github.com/google/uuid"
	goleak = "go.uber.org/goleak"

	goredis   = "github.com/redis/go-redis/v9"
	gobreaker = "github.com/sony/gobreaker/v2"
	websocket = "github.com/coder/websocket"
	gopacket  = "github.com/gopacket/gopacket"
)

// rules are found by the longest matching directory. Imports point down: a package
// may import only what stands above it here.
var rules = []rule{
	{"proto", nil, nil, "the wire protocol: importers get no dependency except the standard library"},
	{"internal/net/endpoint", nil, nil, "the key of a peer: sockets, map and engine share it"},
	{"internal/net/sock", []string{"internal/net/endpoint"}, []string{xnet, xsys}, "sockets: independent of the protocol"},
	{"engine/internal/table", []string{"proto", "internal/net/endpoint"}, nil,
		"the allocation map: it is independent of sockets and of the service"},
	{"internal/base/joincode", nil, nil, "the text of join codes: the service, stores, clients and the state file share it"},
	{"internal/base/printable", nil, nil, "text of another machine or player for a terminal: commands, reports and the operator's pages share it"},
	{"internal/base/unset", nil, nil, "nil values in interfaces: constructors refuse them"},
	{"internal/base/origin", nil, nil, "the header Origin of web pages: the API and WebSocket allow the same ones"},
	{"internal/base/hook", nil, nil, "panics and slow calls of the embedding program's functions: engine, alloc and httpapi call some"},
	{"alloc", []string{"proto", "internal/base/hook", "internal/base/joincode", "internal/base/unset"}, nil,
		"a program that embeds the service must not inherit a web stack"},
	{"alloc/api", nil, nil, "JSON types and a small client for any program"},
	{"internal/net/forwarded", nil, nil, "the client of a request behind proxies: the API and WebSocket share it"},
	{"internal/net/connlimit", []string{"internal/net/evict", "internal/net/forwarded"}, nil,
		"which connection of a listener is closed at a limit: the API, the operator's server and the fleet share it"},
	{"internal/net/proxyproto", []string{"internal/net/forwarded"}, nil, "the PROXY protocol of trusted proxies"},
	{"internal/base/urlpath", nil, nil, "the path by which requests are routed: the API and the servers that have it share it"},
	{"alloc/httpapi", []string{"alloc", "alloc/api", "proto", "internal/net/connlimit", "internal/net/forwarded", "internal/base/hook",
		"internal/base/origin", "internal/base/unset", "internal/base/urlpath"}, []string{uuid, xtime},
		"handlers over the service, not over the engine"},
	{"internal/utp", []string{"proto", "client"}, nil, "the transport of the connection layer; of the clients only the addresses"},
	{"client", []string{"proto", "internal/net/sock", "internal/net/endpoint", "internal/utp", "internal/base/joincode",
		"internal/base/unset", "alloc/api"}, nil,
		"game clients must not depend on the relay"},
	{"client/netcode/playout", []string{"client"}, nil, "when a game uses what has arrived: a part on top of the connection layer"},
	{"client/netcode/internal/simulation", []string{"client"}, nil, "a bad network in front of a link"},
	{"client/csharp", []string{"proto", "alloc", "client", "internal/test/enginetest"}, nil, "the client in C#, tested by clients in Go"},
	{"client/c", []string{"proto", "alloc", "engine", "internal/test/enginetest"}, nil, "the client in C, tested against the relay"},
	{"client/godot", []string{"proto", "alloc", "client"}, nil, "the client in GDScript, tested with clients in Go"},
	{"internal/privateapi", []string{"alloc", "proto"}, nil,
		"what this module's own programs use of a relay, and embedding programs do not"},
	{"engine/internal/statefile", []string{"internal/privateapi", "proto", "internal/base/joincode", "internal/net/endpoint",
		"internal/base/keyfile", "internal/net/sock", "alloc"}, nil, "files of records, whose content belongs to engine and DTLS"},
	{"engine/internal/seal", []string{"proto", "alloc"}, nil, "sealed connection data and derived keys: only a relay opens and seals"},
	{"engine/internal/driver", []string{"proto", "internal/privateapi", "internal/net/endpoint", "engine/internal/table"}, nil,
		"interfaces of the fast path and of DTLS, as the engine calls them"},
	{"engine", []string{"proto", "internal/net/endpoint", "internal/net/sock", "alloc", "internal/base/hook", "internal/base/periodic",
		"internal/base/unset", "internal/privateapi"}, []string{uuid}, "a program that embeds the engine must not inherit a web stack"},
	{"engine/internal/program", []string{"internal/net/endpoint", "internal/net/sock", "engine/internal/table", "proto"},
		[]string{"github.com/cilium/ebpf"}, "the program in the kernel and its loader: only the fast path needs cilium/ebpf"},
	{"engine/internal/nexthop", []string{"internal/net/sock"},
		[]string{"github.com/vishvananda/netlink", "github.com/google/nftables"},
		"the kernel's routes, neighbours and filters by netlink"},
	{"internal/server/host/machine", nil, []string{"github.com/vishvananda/netlink"},
		"how the machine suits a relay, and what it loses; its queues by netlink"},
	{"engine/fastpath", []string{"internal/base/periodic", "internal/net/endpoint", "internal/net/sock", "internal/privateapi", "engine"},
		[]string{"github.com/google/nftables", "github.com/safchain/ethtool"}, "the fast path is optional"},
	{"internal/net/evict", nil, nil, "what a full table ends first: the API, DTLS and WebSocket share it"},
	{"engine/dtls", []string{"proto", "internal/net/endpoint", "internal/base/keyfile", "internal/base/periodic", "internal/net/evict",
		"internal/privateapi", "engine", "internal/base/unset"},
		[]string{"github.com/pion/dtls/v3"}, "DTLS is optional"},
	{"engine/websocket", []string{"proto", "internal/net/endpoint", "internal/net/sock", "internal/net/evict", "internal/net/forwarded",
		"internal/net/proxyproto", "internal/base/origin", "internal/privateapi", "engine"}, []string{websocket}, "WebSocket is optional"},
	{"internal/benchrig", []string{"proto", "internal/net/sock", "internal/net/endpoint", "alloc/api", "client"},
		[]string{websocket, "github.com/pion/dtls/v3", "github.com/pion/stun/v4"},
		"sockets, transports and dialects of the load generator: it must not share the code of the engine"},
	{"bench", []string{"proto", "internal/base/printable", "internal/net/sock", "internal/net/endpoint", "internal/benchrig", "alloc/api"},
		[]string{"github.com/HdrHistogram/hdrhistogram-go", "github.com/prometheus/procfs"},
		"the load generator measures the engine, so it must not share its code; /proc is read by a library"},
	{"internal/server/operator/timeline", []string{"proto", "internal/fleet/operator"}, nil,
		"what happened to allocations: the operator's pages explain it"},
	{"internal/server/events", []string{"alloc", "engine", "internal/privateapi", "proto"}, nil,
		"events of relay and service for several readers"},
	{"internal/server/operator/history", []string{"proto", "alloc", "engine", "internal/privateapi", "internal/base/periodic",
		"internal/net/sock", "internal/fleet/operator", "internal/server/events", "internal/server/operator/timeline"}, nil,
		"what relay and service reported of each allocation and player; the pages are of admin"},
	{"internal/server/operator/ban", []string{"alloc", "internal/base/printable", "internal/net/endpoint", "internal/fleet/operator"}, nil,
		"who is banned: the API, the relay and the pages ask it"},
	{"internal/server/operator/bans", []string{"proto", "alloc", "engine", "internal/base/keyfile", "internal/base/periodic",
		"internal/fleet/operator", "internal/fleet/redisstore", "internal/privateapi", "internal/server/events", "internal/server/operator"}, nil,
		"the bans of one process: only it writes their file, and applies them to a relay"},
	{"internal/server/config", []string{"proto", "alloc", "engine", "internal/base/joincode", "internal/base/keyfile",
		"internal/fleet/operator", "internal/net/connlimit", "internal/server/host/machine"},
		[]string{"github.com/urfave/cli/v3", "go.yaml.in/yaml/v3"},
		"all settings: it knows limits of what they configure, and starts nothing"},
	{"internal/base/periodic", nil, nil, "a loop at intervals: a server has many"},
	{"internal/base/keyfile", nil, nil, "reads and reloads files, independent of their content but for the line end of a secret"},
	{"internal/server/players/outcall", nil, nil, "outgoing calls to configured URLs"},
	{"internal/fleet/placement", []string{"alloc", "internal/base/joincode", "internal/base/periodic", "proto"}, nil,
		"placement of matches on relays"},
	{"internal/fleet/redisstore", []string{"alloc", "internal/fleet/placement", "internal/base/joincode", "proto"},
		[]string{goredis, gobreaker}, "only a fleet needs Redis"},
	{"internal/fleet/operator", nil, nil, "what operators see and do: pages, calls between processes, ferry ctl and the console share it"},
	{"internal/fleet/rpc", []string{"alloc", "engine", "internal/fleet/operator", "internal/fleet/placement",
		"internal/base/keyfile", "internal/base/periodic", "internal/net/connlimit", "internal/net/sock", "proto"}, nil,
		"the call from an API process to a relay"},
	{"internal/server/dataplane", []string{"alloc", "engine", "proto", "internal/privateapi"}, nil,
		"a relay with its transports and endpoints: one process of Ferry and package relay are made of it"},
	{"internal/server/web", []string{"alloc", "internal/base/parts"}, nil,
		"an HTTP server that loses no call when it stops: one process of Ferry and package relay share it"},
	{"internal/base/parts", nil, nil, "the order in which the parts of a program start and stop: a process of Ferry and package relay share it"},
	{"internal/server/upgrade", []string{"internal/net/sock"}, nil, "how a process and its candidate find each other, and what they say"},
	{"internal/server/players/identity", []string{"alloc", "internal/server/players/outcall"},
		[]string{"github.com/golang-jwt/jwt/v5", "github.com/go-jose/go-jose/v4"}, "players' tokens"},
	{"internal/server/players/hooks", []string{"alloc", "internal/server/players/outcall", "proto"}, []string{gobreaker},
		"calls to the operator's own programs"},
	{"internal/server/players/quota", []string{"alloc"}, nil, "limits per project; the engine counts the usage"},
	{"internal/test/redistest", []string{"internal/test/testkit"}, nil, "Redis servers for tests"},
	{"internal/test/testkit/transcript", []string{"client"}, nil, "hashes of what links carry, for tests of the connection layer"},
	{"internal/test/testkit", nil, nil, "test helpers for every package"},
	{"internal/test/oidctest", nil, []string{"github.com/go-jose/go-jose/v4"}, "an issuer of OpenID Connect for tests"},
	{"internal/test/acmetest", []string{"internal/test/testkit"}, []string{"golang.org/x/net/dns/dnsmessage"},
		"a certificate authority for tests"},
	{"internal/test/habits", nil, nil, "how clients of games behave, for tests: the wire is written out again, so that proto is tested by it"},
	{"internal/test/alloctest", []string{"alloc", "proto"}, nil, "a relay without clients for tests of services and fleets"},
	{"internal/test/storetest",
		[]string{"alloc", "internal/base/joincode", "internal/fleet/placement", "internal/test/alloctest", "proto"}, nil,
		"what every store of join codes, directory and registry must do"},
	{"internal/test/enginetest", []string{"alloc", "engine", "internal/privateapi", "proto", "internal/test/habits",
		"internal/test/testkit"}, nil, "a relay and game clients for tests"},
	{"cmd/ferry/internal/ping", []string{"proto", "alloc/api", "client", "internal/base/printable", "internal/fleet/operator"},
		[]string{websocket, "github.com/VictoriaMetrics/metrics", "github.com/pion/dtls/v3"},
		"measured regions, and matches played over each transport with independent client libraries"},
	{"cmd/ferry/internal/ctl",
		[]string{"internal/base/keyfile", "internal/base/printable", "internal/net/sock", "internal/fleet/operator"}, nil,
		"queries to a running process, and the terminal that shows the answers"},
	{"internal/server/operator/capture", []string{"internal/privateapi"}, nil, "the file of a capture: only it writes pcapng"},
	{"internal/server/operator/admin", []string{"proto", "alloc", "engine", "internal"},
		[]string{"github.com/coreos/go-oidc/v3", "golang.org/x/oauth2"},
		"the operator's pages, and the sign-in of people"},
	{"internal/server/host/kube", nil, nil, "calls to the API server of Kubernetes, with net/http"},
	{"internal/server/host/state", []string{"alloc", "engine", "internal/base/keyfile"}, nil,
		"the directory of a relay: identity, lock and names of files"},
	{"internal/server", []string{"proto", "alloc", "client", "engine", "internal", "docs"},
		[]string{uuid, "github.com/caddyserver/certmagic", "go.uber.org/zap", "github.com/VictoriaMetrics/metrics",
			"github.com/urfave/cli/v3", "go.yaml.in/yaml/v3"},
		"one process of Ferry"},
	{"internal/test/wiretest", []string{"proto", "internal/test/enginetest", "internal/test/testkit"},
		[]string{websocket, "github.com/pion/dtls/v3"}, "single messages over each transport, for tests that need no client"},
	{"internal/test", []string{"proto", "alloc", "client", "engine", "internal"}, nil, "tests of the whole, and what tests share"},
	{"cmd/ferry/internal", []string{"proto", "alloc", "client", "engine", "internal"}, []string{"github.com/HdrHistogram/hdrhistogram-go"},
		"commands that are more than flags"},
	{"cmd/internal/demo", []string{"proto", "alloc", "client", "engine", "relay"}, []string{"github.com/HdrHistogram/hdrhistogram-go"},
		"a match that is counted, on public packages only"},
	{"cmd/demo", nil, nil, "the demo without the rest of the binary, for readers of the sources"},
	{"relay", []string{"proto", "alloc", "engine", "client", "internal/base/parts", "internal/base/urlpath", "internal/server/dataplane",
		"internal/server/host/state", "internal/server/web"}, nil, "a whole relay in another program: it wires the parts, and owns none"},
	{"relay/relaytest", []string{"alloc", "client", "relay", "engine", "proto", "internal/test/storetest"}, nil,
		"a relay, a network and conformance tests for programs that embed one"},
	{"docs", []string{"alloc", "client", "engine", "relay"}, nil, "the documentation, and tests of its example code"},
	{"examples", []string{"proto", "alloc", "client", "engine", "relay"}, nil, "what a user of the library can write: public packages only"},
	{"examples/quic", []string{"alloc", "client"}, []string{"github.com/quic-go/quic-go"}, "existing code for net.PacketConn over a session"},
	{"cmd", []string{"proto", "alloc", "client", "engine", "bench", "internal"},
		[]string{uuid, websocket, "github.com/VictoriaMetrics/metrics", "github.com/urfave/cli/v3", "github.com/HdrHistogram/hdrhistogram-go"},
		"the binary"},
	{"scripts", []string{"proto", "engine", "client", "alloc", "bench", "internal"}, []string{xsys}, "test networks and repository rules"},
	{"scripts/ci", nil, []string{"golang.org/x/tools"}, "which checks run, and types of other systems; the vet tools read packages with x/tools as well"},
	{"scripts/ci/importrules", nil, []string{"golang.org/x/tools", "github.com/yuin/goldmark"},
		"rules of the repository, on its source and its pages"},
	{"scripts/deploy", nil, []string{"go.yaml.in/yaml/v3"}, "deployment files, tested against the binary only"},
	{"scripts/lab", []string{"proto", "engine", "client", "alloc", "bench", "internal"},
		[]string{xsys, websocket, "github.com/pion/dtls/v3", "github.com/cilium/ebpf", "github.com/vishvananda/netlink"},
		"players on each transport, with independent client libraries; a program of XDP that stays at a link"},
	{"scripts/bench/idle", []string{"scripts/lab"}, []string{"github.com/prometheus/procfs"}, "what a relay without traffic costs"},
	{"scripts/capacity", nil, nil, "a model of large machines; it knows unit costs only"},
	{"scripts/wireshark", []string{"proto", "client", "internal"}, []string{gopacket},
		"the dissector, tested against tshark with the module's own encoders"},
	{"scripts/fleet", []string{"alloc", "scripts/lab", "internal"}, nil, "tests of several processes as one fleet"},
}

var testOnly = []string{
	goleak, "github.com/getkin/kin-openapi", "github.com/quic-go/quic-go", uuid, gopacket,
	"github.com/coder/websocket", "github.com/pion/dtls/v3", // independent clients
	"github.com/cpuguy83/go-md2man/v2", "github.com/yuin/goldmark", // man pages of a release, and pages of docs
}

func ruleOf(t *testing.T, dir string) rule {
	t.Helper()
	best := -1
	for i, r := range rules {
		if within(dir, r.dir) && (best < 0 || len(r.dir) > len(rules[best].dir)) {
			best = i
		}
	}
	if best < 0 {
		t.Fatalf("%s has no rule: a new package needs a row here with a sentence on its responsibility", dir)
	}
	return rules[best]
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		r := ruleOf(t, s.dir)
		for _, imp := range s.imports() {
			if why := forbidden(t, s, r, imp); why != "" {
				t.Errorf("%s imports %s: %s (%s: %s)", s.name, imp, why, r.dir, r.why)
			}
		}
	}
}

func forbidden(t *testing.T, s source, r rule, imp string) string {
	if inner, ok := strings.CutPrefix(imp, module+"/"); ok {
		if owner, _, ok := strings.Cut(inner, "/internal/"); ok && within(s.dir, owner) && !strings.Contains(s.dir, "/internal/") {
			return "" // its own parts: the compiler keeps others out
		}
		target := ruleOf(t, inner)
		if target.dir == r.dir || slices.ContainsFunc(r.inside, func(in string) bool { return within(target.dir, in) }) {
			return ""
		}
		if s.test && testKit(s, inner) {
			return ""
		}
		return "imports point down only"
	}
	if !strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
		return "" // the standard library
	}
	in := func(list []string) bool {
		return slices.ContainsFunc(list, func(mod string) bool { return within(imp, mod) })
	}
	if in(r.outside) || s.test && in(testOnly) {
		return ""
	}
	return "a further dependency needs a row here and a sentence in the commit"
}

// testKit reports whether a test may import a package as a test helper: relay/relaytest and all of
// internal/test are for tests of every package, and some have parameters of types of engine, alloc and relay.
// Examples may show all public packages together.
func testKit(s source, inner string) bool {
	if within(inner, "internal/test") || within(inner, "relay/relaytest") {
		return true
	}
	if strings.HasPrefix(filepath.Base(s.name), "example_") && (within(inner, "engine") || within(inner, "alloc")) {
		return true
	}
	return (inner == "engine" || inner == "alloc") && slices.Contains(s.imports(), module+"/internal/test/enginetest") ||
		(inner == "engine" || inner == "relay") && slices.Contains(s.imports(), module+"/relay/relaytest")
}

// TestUnsafe: unsafe is used in one file, raw system calls in one package.
func TestUnsafe(t *testing.T) {
	var unsafeFiles []string
	for _, s := range sources(t) {
		for _, imp := range s.imports() {
			if imp == "unsafe" {
				unsafeFiles = append(unsafeFiles, s.name)
			}
			if within(imp, xsys) && !within(s.dir, "internal/net/sock") && !within(s.dir, "scripts") {
				t.Errorf("%s imports %s: only internal/net/sock makes raw system calls, and exports what others need", s.name, imp)
			}
		}
	}
	if len(unsafeFiles) != 1 || !strings.HasPrefix(unsafeFiles[0], "internal/net/sock/") {
		t.Errorf("unsafe is imported by %v: it has one file in internal/net/sock, so that a review can find it", unsafeFiles)
	}
}

var leftover = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)

// TestDocs: every package and every exported name of a library is documented,
// and nothing is left over.
func TestDocs(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		documented[s.dir] = documented[s.dir] || s.file.Doc != nil
		for _, group := range s.file.Comments {
			if leftover.MatchString(group.Text()) {
				t.Errorf("%s: a comment says TODO: it belongs into an issue", s.name)
			}
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() && f.Doc == nil && !method(f) {
				t.Errorf("%s: %s has no doc comment", s.name, f.Name.Name)
			}
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment: what does it own that no other does?", dir)
		}
	}
}

// method reports whether f is a method of a type that is not exported.
func method(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return false
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	name, ok := typ.(*ast.Ident)
	return !ok || !name.IsExported()
}

// TestNoReplace: anybody can install the binary by its path.
func TestNoReplace(t *testing.T) {
	text, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word == "replace" || word == "exclude" {
			t.Errorf("go install github.com/ferryrelay/ferry/cmd/ferry@latest refuses a go.mod with %q", line)
		}
	}
}

func TestRules(t *testing.T) {
	proto := source{name: "proto/x.go", dir: "proto"}
	for imp, want := range map[string]bool{
		"fmt": true, module + "/engine": false, uuid: false, xsys + "/unix": false,
	} {
		if ok := forbidden(t, proto, ruleOf(t, "proto"), imp) == ""; ok != want {
			t.Errorf("proto imports %s: allowed %v", imp, ok)
		}
	}
	example := source{name: "examples/x/main.go", dir: "examples/x"}
	for imp, want := range map[string]bool{
		module + "/client/netcode": true, module + "/engine/dtls": true, module + "/internal/net/sock": false,
		"github.com/quic-go/quic-go": false,
	} {
		if ok := forbidden(t, example, ruleOf(t, "examples/x"), imp) == ""; ok != want {
			t.Errorf("examples import %s: allowed %v", imp, ok)
		}
	}
	bench := source{name: "bench/x.go", dir: "bench"}
	for imp, want := range map[string]bool{
		module + "/internal/net/sock": true, module + "/engine": false, module + "/alloc": false, module + "/internal/benchrig": true,
	} {
		if ok := forbidden(t, bench, ruleOf(t, "bench"), imp) == ""; ok != want {
			t.Errorf("bench imports %s: allowed %v", imp, ok)
		}
	}
}
