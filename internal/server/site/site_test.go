package site

import (
	"io/fs"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ferryrelay/ferry/docs"
)

var (
	reference = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	anchor    = regexp.MustCompile(`id="([^"]*)"`)
)

// TestDocumentation: every page of the documentation is in the list of pages, every link
// between pages and every picture is there, and nothing is loaded from elsewhere.
func TestDocumentation(t *testing.T) {
	files, err := Render(docs.Files, "docs")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := fs.Glob(docs.Files, "*.md")
	if err != nil || len(pages) < 10 {
		t.Fatal(pages, err)
	}
	index := string(files["index.html"])
	links := 0
	for _, source := range pages {
		name := strings.TrimSuffix(source, ".md") + ".html"
		content := string(files[name])
		if !strings.Contains(index, `href="`+name+`"`) {
			t.Errorf("index.md does not have %s", name)
		}
		if strings.Contains(content, "raw HTML omitted") && name != "settings.html" { // whose first line is a comment
			t.Errorf("%s has HTML, which is left out", name)
		}
		for _, m := range reference.FindAllStringSubmatch(content, -1) {
			target, id, _ := strings.Cut(m[1], "#")
			isPicture := strings.HasPrefix(m[0], "src")
			switch {
			case strings.Contains(target, ":"):
				if isPicture {
					t.Errorf("%s loads %s", name, m[1])
				}
				continue
			case target == "":
				target = name
			}
			links++
			if files[target] == nil {
				t.Errorf("%s: there is no %s", name, m[1])
				continue
			}
			ids := func(m []string) bool { return m[1] == id }
			if id != "" && !slices.ContainsFunc(anchor.FindAllStringSubmatch(string(files[target]), -1), ids) {
				t.Errorf("%s: %s has no heading %s", name, target, id)
			}
		}
	}
	if links < 150 {
		t.Errorf("only %d links", links)
	}
}

// TestRender: links, ids, tables and titles; a page cannot contain HTML.
func TestRender(t *testing.T) {
	files, err := Render(fstest.MapFS{
		"index.md":  {Data: []byte("# Start\n\n| page |\n|---|\n| [Two](two.md) |\n")},
		"two.md":    {Data: []byte("# The `code` page\n\n## A, b & c\n\n## A, b & c\n\n[x](../engine/doc.go) [l](research/log.md#a) [y](index.md#start) [z](https://example.org/) ![p](p.png)\n\n<script>alert(1)</script>\n")},
		"p.png":     {Data: []byte("png")},
		"dir/q.svg": {Data: []byte("svg")},
	}, "docs")
	if err != nil {
		t.Fatal(err)
	}
	two := string(files["two.html"])
	for _, want := range []string{
		"<title>The code page</title>", `id="a-b--c"`, `id="a-b--c-1"`, `href="` + Source + `engine/doc.go"`, `href="index.html#start"`,
		`href="` + Source + `docs/research/log.md#a"`,
		`href="https://example.org/"`, `src="p.png"`, `<a href="two.html" aria-current="page">Two</a>`,
	} {
		if !strings.Contains(two, want) {
			t.Errorf("no %s in\n%s", want, two)
		}
	}
	if strings.Contains(two, "<script") || string(files["dir/q.svg"]) != "svg" || len(files) != 4 {
		t.Errorf("%d files\n%s", len(files), two)
	}
	for _, c := range []struct {
		path   string
		status int
		kind   string
	}{{"/docs/", 200, "text/html"}, {"/docs/two.html", 200, "text/html"}, {"/docs/p.png", 200, "image/png"},
		{"/docs/dir/q.svg", 200, "image/svg+xml"}, {"/docs/none.html", 404, ""}, {"/docs/dir", 404, ""}} {
		w := httptest.NewRecorder()
		Handler(files, "/docs/").ServeHTTP(w, httptest.NewRequest("GET", c.path, nil))
		if w.Code != c.status || !strings.HasPrefix(w.Header().Get("Content-Type"), c.kind) {
			t.Errorf("%s: %d %v", path.Base(c.path), w.Code, w.Header())
		}
	}
}
