// Command typecheck type-checks all packages of this module and their tests for other
// systems. It reads dependencies from source, which takes a fraction of the time of go
// vet, since go vet compiles them first.
//
//	go run ./scripts/ci/typecheck darwin windows
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	failed := false
	for _, goos := range os.Args[1:] {
		found, err := packages.Load(&packages.Config{
			Mode:  packages.LoadAllSyntax,
			Env:   append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0"),
			Tests: true,
		}, "./...")
		if err != nil {
			fmt.Fprintln(os.Stderr, "typecheck:", err)
			os.Exit(1)
		}
		errors := packages.PrintErrors(found)
		fmt.Printf("%s: %d packages, %d errors\n", goos, len(found), errors)
		failed = failed || errors > 0
	}
	if failed {
		os.Exit(1)
	}
}
