// Package docs holds the pages of the documentation, for the program that serves them.
package docs

import "embed"

// Files are the pages in Markdown, the first of which is index.md, their pictures, and the
// protocol's test vectors.
//
//go:embed *.md *.svg vectors.json console/*.png
var Files embed.FS
