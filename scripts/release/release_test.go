package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// install permits to install the package on this machine. CI's is thrown away.
var install = flag.Bool("install", os.Getenv("CI") == "true", "install the package on this machine, and remove it again (root, dpkg)")

var first, second string // two releases of the same tree, for this platform

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "release-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		first, second = filepath.Join(dir, "first"), filepath.Join(dir, "second")
		for _, out := range []string{first, second} {
			if err := run(context.Background(), "../..", out, "linux/amd64", true); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return m.Run()
	}())
}

// named returns the file of the first release whose name matches.
func named(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(first, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func TestReproducible(t *testing.T) {
	names := func(dir string) (all []string) {
		if err := eachFile(dir, func(name, sum string) { all = append(all, sum+" "+name) }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	a, b := names(first), names(second)
	if len(a) != 11 || !slices.Equal(a, b) {
		t.Errorf("two releases:\n%s\n\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	check := exec.Command("sha256sum", "--check", "--quiet", "SHA256SUMS")
	check.Dir = first
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestArchive: the archive has the binary, which knows its version, and what belongs to it.
func TestArchive(t *testing.T) {
	file := named(t, "ferry_*_linux_amd64.tar.gz")
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSuffix(filepath.Base(file), ".tar.gz")
	names := unpack(t, z, t.TempDir(), func(h *tar.Header) {
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.After(time.Now()) || !strings.HasPrefix(h.Name, root+"/") {
			t.Errorf("%+v", h)
		}
	})
	for _, want := range []string{"ferry", "LICENSE", "README.md", "man/ferry.1", "man/ferry-serve.1", "completion/ferry.zsh",
		"examples/systemd/ferry-serve.service", "examples/sysctl/90-ferry.conf"} {
		if names[root+"/"+want] == "" {
			t.Errorf("%s is missing", want)
		}
	}
	licenses, err := os.ReadFile(names[root+"/"+licensesFile])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nGo go1.", "\ngolang.org/x/sys v", "\ngithub.com/redis/go-redis/v9 v", "\npreact "} {
		if !bytes.Contains(licenses, []byte(want)) {
			t.Errorf("%s has no %q", licensesFile, want)
		}
	}
	out, err := exec.Command(names[root+"/ferry"], "version").CombinedOutput()
	version := strings.TrimSuffix(strings.TrimPrefix(root, "ferry_"), "_linux_amd64")
	if err != nil || !strings.HasPrefix(string(out), "ferry v"+version+"\n") {
		t.Errorf("%v, want version %s:\n%s", err, version, out)
	}
}

// TestNPM: npm installs the package in an empty directory, where a program can import it, and it has its types, the
// license and the version of the release.
func TestNPM(t *testing.T) {
	file := named(t, "ferryrelay-client-*.tgz")
	game := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = game
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	run("npm", "install", "--offline", "--no-audit", "--no-fund", file)
	run("node", "--input-type=module", "--eval", `import { Allocations, Connection } from "@ferryrelay/client"`)
	installed := filepath.Join(game, "node_modules", "@ferryrelay", "client")
	for _, want := range []string{"LICENSE", "README.md", "dist/index.d.ts"} {
		if _, err := os.Stat(filepath.Join(installed, want)); err != nil {
			t.Error(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(installed, "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Version string }
	if err := json.Unmarshal(text, &manifest); err != nil || manifest.Version == "0.0.0" || filepath.Base(file) != "ferryrelay-client-"+
		manifest.Version+".tgz" {
		t.Errorf("%v: %s has version %q", err, file, manifest.Version)
	}
	archive := filepath.Base(named(t, "ferry_*_linux_amd64.tar.gz"))
	version := strings.TrimSuffix(strings.TrimPrefix(archive, "ferry_"), "_linux_amd64.tar.gz")
	if want, _, _ := strings.Cut(version, "+"); manifest.Version != want { // npm leaves build metadata out.
		t.Errorf("version %s, the release is %s", manifest.Version, version)
	}
}

// unpack writes a tar file to a directory and returns where each of its files is.
func unpack(t *testing.T, r io.Reader, dir string, each func(*tar.Header)) map[string]string {
	t.Helper()
	all := map[string]string{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		each(h)
		name := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(name, fs.FileMode(h.Mode))
		} else if err = os.MkdirAll(filepath.Dir(name), 0o755); err == nil {
			var content []byte
			if content, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(name, content, fs.FileMode(h.Mode))
			}
			all[h.Name] = name
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(name, h.Uid, h.Gid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnity: the package for Unity has the version of the release, and no tests.
func TestUnity(t *testing.T) {
	t.Parallel()
	file := named(t, "org.ferryrelay.client-*.tgz")
	content, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	z, err := gzip.NewReader(content)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			files[h.Name], err = io.ReadAll(archive)
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(h.Name, "Tests~") {
			t.Errorf("it has %s", h.Name)
		}
	}
	for _, name := range []string{"Runtime/FerryRelay.cs", "Runtime/FerryRelay.cs.meta", "Runtime/Ferry.Relay.asmdef", "LICENSE.md",
		"Samples~/Echo/FerryEcho.cs", "Documentation~/index.md"} {
		if len(files["package/"+name]) == 0 {
			t.Errorf("it has no %s", name)
		}
	}
	var manifest struct{ Name, Version string }
	if err := json.Unmarshal(files["package/package.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSuffix(filepath.Base(file), ".tgz"); manifest.Name+"-"+manifest.Version != want || manifest.Version == "0.0.0" {
		t.Errorf("%s is %+v", want, manifest)
	}
}

// TestStatements: the list of modules has those of go.mod, and the statement of provenance
// every other file.
func TestStatements(t *testing.T) {
	text, err := os.ReadFile(named(t, "*.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"pkg:golang/golang.org/x/sys@v", "pkg:golang/github.com/google/uuid@v",
		"pkg:golang/github.com/ferryrelay/ferry@v", "pkg:golang/std@", "pkg:npm/preact@", "pkg:npm/uplot@"} {
		if !bytes.Contains(text, []byte(module)) {
			t.Errorf("the list of modules has no %s", module)
		}
	}
	var s statement
	if text, err = os.ReadFile(named(t, "*.intoto.json")); err != nil || json.Unmarshal(text, &s) != nil {
		t.Fatal(err, string(text))
	}
	entries, err := os.ReadDir(first)
	if err != nil || len(s.Subject) != len(entries)-2 {
		t.Errorf("%d subjects of %d files: %v", len(s.Subject), len(entries), err)
	}
	if commit := s.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"]; !regexp.MustCompile(
		`^[0-9a-f]{40}$`).MatchString(commit) {
		t.Errorf("commit %q", commit)
	}
}

// TestImage unpacks the image and runs it as its user, without a capability, in namespaces for
// processes and mounts (root).
func TestImage(t *testing.T) {
	f, err := os.Open(named(t, "*_image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	unpack(t, f, dir, func(*tar.Header) {})
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatal(manifest, err)
	}
	digest, err := os.ReadFile(named(t, "*_image.digest"))
	if err != nil || strings.TrimSpace(string(digest)) != manifest.Manifests[0].Digest.String() {
		t.Errorf("digest %s, in the image %s: %v", digest, manifest.Manifests[0].Digest, err)
	}
	image := only(t, top, manifest.Manifests[0].Digest)
	config, err := image.ConfigFile()
	if err != nil || config.Config.User != "65532:65532" || config.Architecture != "amd64" || len(config.Config.Entrypoint) != 1 {
		t.Fatalf("%+v, %v", config, err)
	}
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("the rest needs root")
		}
		t.Skip("the rest needs root")
	}
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	content := mutate.Extract(image)
	unpack(t, content, root, func(*tar.Header) {})
	if err := content.Close(); err != nil {
		t.Fatal(err)
	}
	serves(t, func(args ...string) *exec.Cmd {
		cmd := exec.Command(config.Config.Entrypoint[0], args...)
		cmd.Dir, cmd.Env = "/", config.Config.Env
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Chroot: root, Credential: &syscall.Credential{Uid: nonRoot, Gid: nonRoot},
			Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		}
		return cmd
	}, "--state-dir", "/var/lib/ferry")
}

// maxBinary is above what is linked while no template keeps methods of libraries that nothing calls: a
// program with text/template is above it.
const maxBinary = 30_000_000

var buildLine = regexp.MustCompile(`(?m)^RUN ((?:[A-Z0-9_]+=\S+ )*)go build (.*) -o /out/ferry (\S+)$`)

// TestContainerfile: the binary that the container file builds is static, since its image
// has no libraries, and small.
func TestContainerfile(t *testing.T) {
	file, err := os.ReadFile("../deploy/container/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	line := buildLine.FindStringSubmatch(string(file))
	if line == nil {
		t.Fatalf("the container file has no line %s", buildLine)
	}
	binary := filepath.Join(t.TempDir(), "ferry")
	build := exec.Command("go", append(append([]string{"build"}, strings.Fields(line[2])...), "-o", binary, line[3])...)
	build.Dir, build.Env = "../..", append(os.Environ(), strings.Fields(line[1])...)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line[0], err, text)
	}
	if info, err := os.Stat(binary); err != nil || info.Size() > maxBinary {
		t.Errorf("%d bytes, %v; want at most %d", info.Size(), err, maxBinary)
	}
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary has a segment %v: it is not static", p.Type)
		}
	}
}

func only(t *testing.T, top v1.ImageIndex, digest v1.Hash) v1.Image {
	t.Helper()
	index, err := top.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatal(manifest, err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func serves(t *testing.T, command func(args ...string) *exec.Cmd, flags ...string) {
	t.Helper()
	admin, api := freePort(t), freePort(t)
	cmd := command(append([]string{"dev", "--udp", "127.0.0.1:0", "--http", api, "--admin", admin}, flags...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		r, err := http.Get("http://" + admin + "/readyz")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, &log)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			t.Fatalf("not ready: %v\n%s", err, &log)
		}
	}
	r, err := http.Post("http://"+api+"/v1/allocate", "application/json", strings.NewReader(`{"maxConnections":2}`))
	if err != nil {
		t.Error(err)
	} else {
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if !bytes.Contains(body, []byte(`"allocationId"`)) {
			t.Errorf("%s: %s", r.Status, body)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, &log)
	}
}

// TestDeb installs the package, runs the binary under what the unit says of users,
// capabilities and limits, installs it again as an update, and removes it. Here no systemd
// runs, so setpriv and prlimit do what it would.
func TestDeb(t *testing.T) {
	if !*install {
		t.Skip("it installs the package on this machine: say -install")
	}
	for _, program := range []string{"dpkg", "setpriv", "prlimit"} {
		if _, err := exec.LookPath(program); err != nil || os.Geteuid() != 0 {
			t.Fatalf("this needs root and %s: %v", program, err)
		}
	}
	dpkg := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("dpkg", args...).CombinedOutput(); err != nil {
			t.Fatalf("dpkg %q: %v\n%s", args, err, out)
		}
	}
	file := named(t, "*.deb")
	t.Cleanup(func() { dpkg("--purge", "ferry") })
	dpkg("--install", file)
	for name, mode := range map[string]fs.FileMode{
		"/usr/bin/ferry": 0o755, "/etc/ferry": 0o750, "/etc/ferry/ferry.yaml": 0o640, "/etc/ferry/token": 0o640,
		"/usr/lib/systemd/system/ferry-serve.service": 0o644, "/usr/share/man/man1/ferry-serve.1.gz": 0o644,
		"/usr/share/bash-completion/completions/ferry": 0o644, "/usr/lib/sysusers.d/ferry.conf": 0o644,
	} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	unit, err := os.ReadFile("/usr/lib/systemd/system/ferry-serve.service")
	if err != nil {
		t.Fatal(err)
	}
	start := regexp.MustCompile(`(?m)^ExecStart=(\S+) `).FindSubmatch(unit)
	limit := regexp.MustCompile(`(?m)^LimitNOFILE=(\d+)$`).FindSubmatch(unit)
	capabilities := "-all"
	for _, name := range regexp.MustCompile(`(?m)^AmbientCapabilities=(.*)$`).FindSubmatch(unit)[1:] {
		for _, one := range strings.Fields(string(name)) {
			capabilities += ",+" + strings.ToLower(strings.TrimPrefix(one, "CAP_"))
		}
	}
	if start == nil || limit == nil || string(start[1]) != "/usr/bin/ferry" {
		t.Fatalf("the unit starts %q with %q files", start, limit)
	}
	// A machine that lends no capability for resources keeps its own limit, if that is lower.
	var own syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	files, err := strconv.ParseUint(string(limit[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if files = min(files, own.Max); files != own.Max {
		t.Logf("the unit's limit of files is %s", limit[1])
	} else {
		t.Logf("%d files, the limit of this machine, for %s of the unit", files, limit[1])
	}
	group, err := exec.Command("getent", "group", "ferry").Output()
	if err != nil || len(strings.Split(string(group), ":")) < 3 {
		t.Fatalf("no group: %v", err)
	}
	state := t.TempDir()
	for dir := state; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(state, nonRoot, nonRoot); err != nil {
		t.Fatal(err)
	}
	under := func(args ...string) *exec.Cmd {
		return exec.Command("prlimit", append([]string{
			fmt.Sprintf("--nofile=%d", files), "--core=0", "--", "setpriv", "--reuid", fmt.Sprint(nonRoot), "--regid", fmt.Sprint(nonRoot),
			"--groups", strings.Split(string(group), ":")[2],
			"--inh-caps=" + capabilities, "--ambient-caps=" + capabilities, "--bounding-set=" + capabilities, "--no-new-privs",
			"--", string(start[1]),
		}, args...)...)
	}
	// The user reads the settings and the token by its group, and no other user does.
	if out, err := under("check", "--config", "/etc/ferry/ferry.yaml").CombinedOutput(); !bytes.Contains(out, []byte("tls_cert")) {
		t.Errorf("check of the example, whose certificate does not exist: %v\n%s", err, out)
	}
	if out, err := exec.Command("setpriv", "--reuid", "65534", "--clear-groups", "--", "cat",
		"/etc/ferry/token").CombinedOutput(); err == nil {
		t.Errorf("anybody reads the token: %s", out)
	}
	serves(t, under, "--state-dir", state)

	// An update keeps what the operator changed.
	if err := os.WriteFile("/etc/ferry/ferry.yaml", []byte("# changed\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile("/etc/ferry/token")
	if err != nil {
		t.Fatal(err)
	}
	dpkg("--install", "--force-confold", file)
	settings, _ := os.ReadFile("/etc/ferry/ferry.yaml")
	after, _ := os.ReadFile("/etc/ferry/token")
	if string(settings) != "# changed\n" || !bytes.Equal(after, token) || !regexp.MustCompile(`^[0-9a-f]{48}\n$`).Match(token) {
		t.Errorf("after the update: %q, token %q, was %q", settings, after, token)
	}
	dpkg("--remove", "ferry")
	if _, err := os.Stat("/usr/bin/ferry"); err == nil {
		t.Error("the binary is still there")
	}
	if _, err := os.Stat("/etc/ferry/token"); err != nil {
		t.Error("a removal took the token:", err)
	}
	dpkg("--purge", "ferry")
	if _, err := os.Stat("/etc/ferry"); err == nil {
		t.Error("a purge left the settings")
	}
}

// TestRPM: rpm reads the package, if it is installed, and finds its files and scripts.
func TestRPM(t *testing.T) {
	file := named(t, "*.rpm")
	if _, err := exec.LookPath("rpm"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("rpm is missing")
		}
		t.Skip("rpm is missing")
	}
	out, err := exec.Command("rpm", "-qp", "--nosignature", "--list", "--scripts", "--info", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"/usr/bin/ferry\n", "/etc/ferry/ferry.yaml\n", "systemd-sysusers ferry.conf", "Build Host  : localhost",
		"License     : Apache-2.0"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestRefusals: what cannot become a release is refused, with a reason.
func TestRefusals(t *testing.T) {
	if err := run(context.Background(), "../..", first, "linux/amd64", true); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("into a directory with files: %v", err)
	}
	if err := run(context.Background(), "../..", t.TempDir(), "plan9/amd64", true); err == nil ||
		!strings.Contains(err.Error(), "is none of") {
		t.Errorf("another platform: %v", err)
	}
	if err := (&release{}).identify(os.Args[0], true); err == nil || !strings.Contains(err.Error(), "does not know its version") {
		t.Errorf("a binary without a commit: %v", err)
	}
}
