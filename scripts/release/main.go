// Command release builds what a release of Ferry consists of, from a commit: archives, packages
// for Debian, RPM, npm and Unity, an image, a list of modules (SBOM), a statement of provenance,
// checksums, and the protocol's test vectors. The same commit and Go version give the same bytes.
//
//	go -C scripts/release run . --out ../../out/release
//
// It is a module of its own: a program that embeds Ferry does not get the libraries of packages and images.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	repo := flag.String("repo", "../..", "build the repository in `DIR`")
	out := flag.String("out", "../../out/release", "write to `DIR`, which must be empty or new")
	dirty := flag.Bool("dirty", false, "build a work tree with changes that are not committed")
	only := flag.String("only", "", "build for one `OS/ARCH` only, such as linux/amd64")
	flag.Parse()
	if err := run(ctx, *repo, *out, *only, *dirty); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// platform is what a binary is built for.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

func run(ctx context.Context, repo, out, only string, dirty bool) error {
	wanted := slices.Clone(platforms)
	if only != "" {
		wanted = slices.DeleteFunc(wanted, func(p platform) bool { return p.String() != only })
		if len(wanted) == 0 {
			return fmt.Errorf("--only: %q is none of %v", only, platforms)
		}
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", out)
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	r, err := build(ctx, repo, wanted, dirty)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.write(ctx, out); err != nil {
		return err
	}
	return list(out)
}

// write writes every file of the release. Checksums come last, over all others.
func (r *release) write(ctx context.Context, out string) error {
	for _, b := range r.binaries {
		if err := r.archive(out, b); err != nil {
			return err
		}
		if err := r.bom(out, b); err != nil {
			return err
		}
		if b.os != "linux" {
			continue
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := r.pack(out, format, b); err != nil {
				return err
			}
		}
	}
	if err := r.npm(ctx, out); err != nil {
		return err
	}
	if err := r.image(out); err != nil {
		return err
	}
	if err := r.vectors(out); err != nil {
		return err
	}
	if err := r.unity(out); err != nil {
		return err
	}
	if err := r.provenance(out); err != nil {
		return err
	}
	return checksums(out)
}

// list prints the files with their sizes.
func list(out string) error {
	entries, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%.1f MB\t  %s\n", float64(info.Size())/1e6, filepath.Join(out, e.Name()))
	}
	return table.Flush()
}
