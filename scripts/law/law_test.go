package law

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
	"testing"
)

const module = "github.com/ferryrelay/ferry"

// source is one Go file of the repository.
type source struct {
	name  string // with slashes, from the root
	dir   string
	test  bool
	file  *ast.File
	fset  *token.FileSet
	lines int
}

func sources(t *testing.T) (all []source) {
	t.Helper()
	const root = "../.."
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != root || d.Name() == "testdata" || d.Name() == "out") {
			return filepath.SkipDir
		}
		if _, err := os.Stat(filepath.Join(name, "go.mod")); d.IsDir() && err == nil && name != root {
			return filepath.SkipDir // A module of its own, with laws of its own.
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		rel = filepath.ToSlash(rel)
		all = append(all, source{
			name: rel, dir: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"),
			file: file, fset: fset, lines: fset.File(file.Pos()).LineCount(),
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d Go files: the law looks in the wrong place", len(all))
	}
	return all
}

func (s source) imports() (paths []string) {
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

// within reports whether pkg is root or lies below it.
func within(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }

// room is a package, with all below it that has no row of its own.
type room struct {
	dir string
	// inside are the rooms that it may import.
	inside []string
	// outside are the modules that it may import besides the standard library.
	outside []string
	why     string
}

const (
	xnet   = "golang.org/x/net"
	xsys   = "golang.org/x/sys"
	xtime  = "golang.org/x/time"
	uuid   = "github.com/google/uuid"
	goleak = "go.uber.org/goleak"

	goredis = "github.com/redis/go-redis/v9"
)

// rooms is the import law. A room is found by its longest matching directory.
var rooms = []room{
	{"proto", nil, nil, "the wire and nothing else: standard library only"},
	{"engine/sock", nil, []string{xnet, xsys}, "the kernel: it knows nothing of the protocol"},
	{"alloc", []string{"proto", "engine/sock"}, []string{uuid}, "who embeds the engine must not inherit a web stack"},
	{"alloc/api", nil, nil, "a leaf: JSON types and a small client for anybody"},
	{"alloc/store", []string{"alloc", "alloc/fleet", "proto"}, nil, "a store knows codes and ids"},
	{"alloc/store/redis", []string{"alloc", "alloc/fleet", "proto"}, []string{goredis}, "a leaf: Redis, for who has many machines"},
	{"alloc/fleet", []string{"alloc", "proto"}, nil, "where a new match goes, and where an old one is"},
	{"alloc/keyfile", nil, nil, "a leaf: files, not what is in them"},
	{"alloc/cluster", []string{"alloc", "proto"}, nil, "the call from an API to a relay: what either does with it is elsewhere"},
	{"alloc/outcall", nil, nil, "a leaf: calls to whom the operator has named, for who makes some"},
	{"alloc/identity", []string{"alloc", "alloc/outcall"}, []string{"github.com/golang-jwt/jwt/v5"}, "a leaf: whose token it is, for who wants tokens"},
	{"alloc/hooks", []string{"alloc", "alloc/outcall", "proto"}, nil, "what the operator's own programs are asked and told"},
	{"alloc/quota", []string{"alloc"}, nil, "what a project may use; who counts it is somebody else's"},
	{"alloc/httpapi", []string{"alloc", "alloc/api", "proto"}, []string{uuid, xtime}, "handlers over the service, not over the engine"},
	{"client", []string{"proto", "engine/sock", "alloc/api"}, nil, "a player's machine has no relay in it"},
	{"engine", []string{"proto", "engine/sock", "engine/ledger", "alloc"}, []string{uuid}, "who embeds the engine must not inherit a web stack"},
	{"engine/ledger", []string{"proto", "engine/sock", "alloc"}, nil, "a file of records, of which the engine knows the meaning"},
	{"engine/dtls", []string{"proto", "engine/sock", "engine/ledger", "engine"}, []string{"github.com/pion/dtls/v3"}, "a leaf: DTLS, for who wants it"},
	{"engine/websocket", []string{"proto", "engine/sock", "engine"}, []string{"github.com/coder/websocket"}, "a leaf: WebSocket, for who wants it"},
	{"bench", []string{"proto", "engine/sock", "alloc/api", "client"}, []string{"github.com/HdrHistogram/hdrhistogram-go"},
		"a black box that knows only addresses: it measures engine, so it must not share its code"},
	{"cmd", []string{"proto", "alloc", "client", "engine", "bench", "cmd"},
		[]string{uuid, "github.com/coder/websocket", "golang.org/x/crypto", "github.com/VictoriaMetrics/metrics", "github.com/urfave/cli/v3", "go.yaml.in/yaml/v3", "github.com/HdrHistogram/hdrhistogram-go"},
		"the one place where everything meets"},
	{"scripts", []string{"proto", "engine", "client", "alloc", "bench"}, []string{xsys}, "laboratory and law"},
	{"scripts/deploy", nil, []string{"go.yaml.in/yaml/v3"}, "files for operators, held against the binary and nothing else"},
	{"scripts/lab", []string{"proto", "engine", "client", "alloc", "bench"},
		[]string{xsys, "github.com/coder/websocket", "github.com/pion/dtls/v3"}, "players by every way in, with libraries that real ones may have"},
	{"scripts/fleet", []string{"alloc", "scripts/lab"}, nil, "many machines, seen by players and backends"},
}

// testOnly are modules that tests of any room may import.
var testOnly = []string{
	goleak, "github.com/getkin/kin-openapi", "github.com/quic-go/quic-go", uuid,
	"github.com/coder/websocket", "github.com/pion/dtls/v3", // players that are not ours
}

func roomOf(t *testing.T, dir string) room {
	t.Helper()
	best := -1
	for i, r := range rooms {
		if within(dir, r.dir) && (best < 0 || len(r.dir) > len(rooms[best].dir)) {
			best = i
		}
	}
	if best < 0 {
		t.Fatalf("%s belongs to no room: a new package needs a row here and one sentence, what it owns that no other does", dir)
	}
	return rooms[best]
}

// TestImports: imports point down only.
func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		r := roomOf(t, s.dir)
		for _, imp := range s.imports() {
			if why := forbidden(t, s, r, imp); why != "" {
				t.Errorf("%s imports %s: %s (%s: %s)", s.name, imp, why, r.dir, r.why)
			}
		}
	}
}

func forbidden(t *testing.T, s source, r room, imp string) string {
	if inner, ok := strings.CutPrefix(imp, module+"/"); ok {
		target := roomOf(t, inner)
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

// testKit reports whether a test may import a package as, or for, a test kit:
// those of engine and store are for tests of every room, and speak in the types
// of engine and alloc.
func testKit(s source, inner string) bool {
	if within(inner, "engine/enginetest") || within(inner, "alloc/store") {
		return true
	}
	return (inner == "engine" || inner == "alloc") && slices.Contains(s.imports(), module+"/engine/enginetest")
}

// TestQuarantine: unsafe lives in one file, raw system calls in one package.
func TestQuarantine(t *testing.T) {
	var unsafeFiles []string
	for _, s := range sources(t) {
		for _, imp := range s.imports() {
			if imp == "unsafe" {
				unsafeFiles = append(unsafeFiles, s.name)
			}
			if within(imp, xsys) && !within(s.dir, "engine/sock") && !within(s.dir, "scripts") {
				t.Errorf("%s imports %s: only engine/sock talks to the kernel, and exports what others need", s.name, imp)
			}
		}
	}
	if len(unsafeFiles) != 1 || !strings.HasPrefix(unsafeFiles[0], "engine/sock/") {
		t.Errorf("unsafe is imported by %v: it has one file in engine/sock, so that a review can find it", unsafeFiles)
	}
}

const (
	maxFunction = 70  // lines: what a reader holds in the head
	maxFile     = 600 // lines: one subject
)

// TestSizes: functions and files stay short.
func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if s.lines > maxFile {
			t.Errorf("%s has %d lines, limit %d: a file has one subject", s.name, s.lines, maxFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if n > maxFunction {
				t.Errorf("%s: %s has %d lines, limit %d: what a reader holds in the head", s.name, f.Name.Name, n, maxFunction)
			}
		}
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

// TestLaw checks that the law itself bites.
func TestLaw(t *testing.T) {
	proto := source{name: "proto/x.go", dir: "proto"}
	for imp, want := range map[string]bool{
		"fmt": true, module + "/engine": false, uuid: false, xsys + "/unix": false,
	} {
		if ok := forbidden(t, proto, roomOf(t, "proto"), imp) == ""; ok != want {
			t.Errorf("proto imports %s: allowed %v", imp, ok)
		}
	}
	bench := source{name: "bench/x.go", dir: "bench"}
	for imp, want := range map[string]bool{
		module + "/engine/sock": true, module + "/engine": false, module + "/alloc": false, module + "/alloc/api": true,
	} {
		if ok := forbidden(t, bench, roomOf(t, "bench"), imp) == ""; ok != want {
			t.Errorf("bench imports %s: allowed %v", imp, ok)
		}
	}
}
