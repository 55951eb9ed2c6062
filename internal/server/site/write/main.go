// Command write writes the documentation as static pages to a directory, for any web server.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/ferryrelay/ferry/docs"
	"github.com/ferryrelay/ferry/internal/server/site"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: write DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "write:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	files, err := site.Render(docs.Files, "docs")
	if err != nil {
		return err
	}
	for name, content := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	fmt.Println(len(files), "files in", dir)
	return nil
}
