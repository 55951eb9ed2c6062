package docs

import (
	"fmt"
	"html"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

var (
	reference = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	anchor    = regexp.MustCompile(`id="([^"]*)"`)
)

// TestPages: html has the pages as they are rendered now. Every page is in the list of index.md, every link between
// pages and every picture is there, and nothing is loaded from elsewhere.
func TestPages(t *testing.T) {
	sources, err := filepath.Glob("*.md")
	if err != nil || len(sources) < 10 {
		t.Fatal(sources, err)
	}
	pages := renderPages(t, sources)
	checkWritten(t, pages)
	links := 0
	for name, content := range pages {
		if !strings.Contains(pages["index.html"], `href="`+name+`"`) {
			t.Errorf("index.md does not have %s", name)
		}
		if strings.Contains(content, "raw HTML omitted") && name != "settings.html" { // whose first line is a comment
			t.Errorf("%s has HTML, which is left out", name)
		}
		for _, m := range reference.FindAllStringSubmatch(content, -1) {
			target, id, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				if strings.HasPrefix(m[0], "src") {
					t.Errorf("%s loads %s", name, m[1])
				}
				continue
			}
			if target == "" {
				target = name
			}
			links++
			if _, ok := pages[target]; !ok && get(target).Code != 200 {
				t.Errorf("%s: there is no %s", name, m[1])
				continue
			}
			ids := func(m []string) bool { return m[1] == id }
			if id != "" && !slices.ContainsFunc(anchor.FindAllStringSubmatch(pages[target], -1), ids) {
				t.Errorf("%s: %s has no heading %s", name, target, id)
			}
		}
	}
	if links < 150 {
		t.Errorf("only %d links", links)
	}
}

const howToRewrite = "go test ./docs -run TestPages -rewrite"

// checkWritten compares html with the pages, or writes it.
func checkWritten(t *testing.T, pages map[string]string) {
	t.Helper()
	there, err := filepath.Glob("html/*.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range there {
		_, ok := pages[filepath.Base(file)]
		switch {
		case ok:
		case *rewrite:
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("docs/%s has no Markdown: %s", file, howToRewrite)
		}
	}
	for name, content := range pages {
		file := filepath.Join("html", name)
		if *rewrite {
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if written, _ := os.ReadFile(file); string(written) != content {
			t.Errorf("docs/%s is not what its Markdown says: %s", file, howToRewrite)
		}
	}
}

// TestHandler: types of files, and what is not there.
func TestHandler(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]string{
		"": "text/html; charset=utf-8", "unity.html": "text/html; charset=utf-8", "style.css": "text/css; charset=utf-8",
		"deployment.svg": "image/svg+xml", "console/overview.png": "image/png", "vectors.json": "application/json",
	} {
		w := get(name)
		if w.Code != 200 || w.Header().Get("Content-Type") != kind || w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%q: %d %v", name, w.Code, w.Header())
		}
	}
	for _, name := range []string{"none.html", "html", "html/", "console", "unity.md", "../docs.go"} {
		if w := get(name); w.Code != 404 {
			t.Errorf("%q: %d", name, w.Code)
		}
	}
}

func get(name string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/docs/", nil)
	r.URL.Path += name
	Handler("/docs/").ServeHTTP(w, r)
	return w
}

// repository is where links to files that are not pages lead.
const repository = "https://github.com/ferryrelay/ferry/blob/main/"

var indexLink = regexp.MustCompile(`\| \[([^\]]+)\]\(([a-z-]+)\.md\)`)

// renderPages returns a page NAME.html for each NAME.md, with a list of those that index.md links to.
func renderPages(t *testing.T, sources []string) map[string]string {
	t.Helper()
	shell, err := os.ReadFile("testdata/page.html")
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile("index.md")
	if err != nil {
		t.Fatal(err)
	}
	titles := append([][]string{{"", "Ferry", "index"}}, indexLink.FindAllStringSubmatch(string(index), -1)...)
	all := map[string]string{}
	for _, source := range sources {
		title, body := renderPage(t, source)
		var list strings.Builder
		for _, e := range titles {
			here := ""
			if e[2]+".md" == source {
				here = ` aria-current="page"`
			}
			fmt.Fprintf(&list, "<li><a href=\"%s.html\"%s>%s</a>\n", e[2], here, html.EscapeString(e[1]))
		}
		// Goldmark escapes the text of the body and leaves HTML out.
		values := strings.NewReplacer("TITLE", html.EscapeString(title), "ENTRIES", list.String(), "BODY", body)
		all[htmlName(source)] = values.Replace(string(shell))
	}
	return all
}

func htmlName(name string) string { return strings.TrimSuffix(name, ".md") + ".html" }

func renderPage(t *testing.T, source string) (title, body string) {
	t.Helper()
	content, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	context := parser.NewContext(parser.WithIDs(&headingIDs{used: map[string]int{}}))
	tree := md.Parser().Parse(text.NewReader(content), parser.WithContext(context))
	title = source
	err = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Heading:
			if entering && n.Level == 1 {
				title = plain(n, content)
			}
		case *ast.Link:
			if entering {
				n.Destination = []byte(destination(string(n.Destination)))
			}
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := md.Renderer().Render(&b, content, tree); err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return title, b.String()
}

func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// destination leads to another page, to a file that the program serves, or to the repository.
func destination(link string) string {
	target, anchor, hasAnchor := strings.Cut(link, "#")
	_, err := os.Stat(target)
	isPage := err == nil && path.Ext(target) == ".md" && path.Dir(target) == "."
	switch {
	case target == "" || strings.Contains(target, ":"):
		return link
	case isPage:
		target = htmlName(target)
	case get(target).Code != 200:
		target = repository + path.Join("docs", target)
	}
	if hasAnchor {
		target += "#" + anchor
	}
	return target
}

// headingIDs makes the ids of headings as GitHub does: lower case, without punctuation, with
// hyphens for spaces.
type headingIDs struct{ used map[string]int }

var punctuation = regexp.MustCompile(`[^\pL\pN _-]`)

func (h *headingIDs) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(string(util.TrimRightSpace(value))), ""), " ", "-")
	n := h.used[id]
	h.used[id]++
	if n > 0 {
		id += "-" + strconv.Itoa(n)
	}
	return []byte(id)
}

func (h *headingIDs) Put(value []byte) { h.used[string(value)]++ }
