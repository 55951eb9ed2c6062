// Package docs holds the pages of the documentation, for the program that serves them.
package docs

import "embed"

// Files are the pages in Markdown, the first of which is index.md, and their pictures.
//
//go:embed *.md *.svg console/*.png
var Files embed.FS
