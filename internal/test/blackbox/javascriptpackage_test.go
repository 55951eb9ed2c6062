//go:build browser

package blackbox

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestJavaScriptPackage: client/js as npm packs it is installed into an empty project, which
// plays by it in Node, in each situation of its table, and in Chromium.
func TestJavaScriptPackage(t *testing.T) {
	t.Parallel()
	npm, node := testkit.Program(t, "npm", "npm"), testkit.Program(t, "node", "nodejs")
	testkit.Program(t, "chromium", "chromium")
	const source = "../../../client/js"
	if _, err := os.Stat(source + "/node_modules/typescript"); err != nil {
		t.Fatal("client/js has no compiler: make client-js-install")
	}
	project := t.TempDir()
	if err := os.CopyFS(project, os.DirFS(source+"/test/package")); err != nil {
		t.Fatal(err)
	}
	run := func(dir, program string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "FERRY="+binary)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
		}
		if program == node {
			t.Logf("%s", out)
		}
	}
	quiet := []string{"--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"}
	run(source, npm, "pack", "--loglevel=error", "--pack-destination", project)
	packed, err := filepath.Glob(filepath.Join(project, "ferryrelay-client-*.tgz"))
	if err != nil || len(packed) != 1 {
		t.Fatalf("npm packed %v, %v", packed, err)
	}
	run(project, npm, append([]string{"ci"}, quiet...)...)
	run(project, npm, append([]string{"install", "--no-save", packed[0]}, quiet...)...)
	for _, name := range []string{"LICENSE", "README.md", "dist/index.js", "dist/index.d.ts"} {
		if _, err := os.Stat(filepath.Join(project, "node_modules/@ferryrelay/client", name)); err != nil {
			t.Error(err)
		}
	}

	t.Run("Chromium", func(t *testing.T) {
		t.Parallel()
		bundle(t, filepath.Join(project, "page.mjs"), filepath.Join(project, "site/page.js"))
		html := `<!doctype html><meta charset="utf-8"><title>package</title><script type="module" src="page.js"></script>`
		if err := os.WriteFile(filepath.Join(project, "site/index.html"), []byte(html), 0o600); err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(project, "site"))))
		t.Cleanup(srv.Close)
		f := dev(t)
		host := clienttest.Host(t, &api.Client{BaseURL: f.api}, 4, nil)
		p := startChromium(t).open(srv.URL, "typeof play === 'function'")
		var got string
		if p.do(&got, "play", f.api, "", host.Code); got != "hello" {
			t.Errorf("the page got %q", got)
		}
	})
	t.Run("Node", func(t *testing.T) {
		t.Parallel()
		nodeVersion(t, node)
		run(project, node, "--test", "--test-reporter=spec", "situations.test.mjs")
	})
}
