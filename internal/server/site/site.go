// Package site makes web pages of the documentation: one page for each file in Markdown, with
// a list of all pages beside it. The pages need no script and no other server.
package site

import (
	_ "embed"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Source is where links to files that are not pages lead: the repository.
const Source = "https://github.com/ferryrelay/ferry/blob/main/"

//go:embed page.html
var pageHTML string

type entry struct{ name, title string }

type site struct {
	files   fs.FS
	dir     string // of files in the repository
	entries []entry
}

// Render returns the files of the site by their names: a page NAME.html for each NAME.md of
// files, and everything else unchanged. The list of pages is that of the links in index.md.
// dir is the directory of files in the repository.
func Render(files fs.FS, dir string) (map[string][]byte, error) {
	index, err := fs.ReadFile(files, "index.md")
	if err != nil {
		return nil, err
	}
	s := site{files, dir, entriesOf(index)}
	all := map[string][]byte{}
	err = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(name, ".md") {
			all[name] = content
			return nil
		}
		all[htmlName(name)], err = s.render(content, name)
		return err
	})
	return all, err
}

func htmlName(name string) string { return strings.TrimSuffix(name, ".md") + ".html" }

var indexLink = regexp.MustCompile(`\| \[([^\]]+)\]\(([a-z-]+)\.md\)`)

func entriesOf(index []byte) []entry {
	all := []entry{{name: "index.html", title: "Ferry"}}
	for _, m := range indexLink.FindAllSubmatch(index, -1) {
		all = append(all, entry{name: string(m[2]) + ".html", title: string(m[1])})
	}
	return all
}

func (s *site) render(content []byte, name string) ([]byte, error) {
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	context := parser.NewContext(parser.WithIDs(&headingIDs{used: map[string]int{}}))
	tree := md.Parser().Parse(text.NewReader(content), parser.WithContext(context))
	title := name
	err := ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Heading:
			if entering && n.Level == 1 {
				title = plain(n, content)
			}
		case *ast.Link:
			if entering {
				n.Destination = []byte(s.destination(string(n.Destination)))
			}
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return nil, err
	}
	var body, list strings.Builder
	if err := md.Renderer().Render(&body, content, tree); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, e := range s.entries {
		here := ""
		if e.name == htmlName(name) {
			here = ` aria-current="page"`
		}
		fmt.Fprintf(&list, "<li><a href=\"%s\"%s>%s</a>\n", html.EscapeString(e.name), here, html.EscapeString(e.title))
	}
	// Goldmark escapes the text of the body and leaves HTML out.
	values := strings.NewReplacer("TITLE", html.EscapeString(title), "ENTRIES", list.String(), "BODY", body.String())
	return []byte(values.Replace(pageHTML)), nil
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

// destination leads to another page, to a file of the site, or to the repository.
func (s *site) destination(link string) string {
	target, anchor, hasAnchor := strings.Cut(link, "#")
	switch {
	case target == "" || strings.Contains(target, ":"):
		return link
	case !s.has(target):
		target = Source + path.Join(s.dir, target)
	case strings.HasSuffix(target, ".md"):
		target = htmlName(target)
	}
	if hasAnchor {
		target += "#" + anchor
	}
	return target
}

func (s *site) has(name string) bool {
	_, err := fs.Stat(s.files, name)
	return err == nil
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

// policy forbids everything that the pages do not need.
const policy = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves what Render returned, below prefix, which ends in a slash.
func Handler(files map[string][]byte, prefix string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, prefix)
		if name == "" {
			name = "index.html"
		}
		content, ok := files[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		kind := map[string]string{".html": "text/html; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png"}[path.Ext(name)]
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(content) // An error means that the client has gone.
	})
}
