// Package mutants checks the tests: it breaks the rules of the relay that matter
// most, one at a time, and runs the test that must fail then.
//
// It is built with the tag mutants only:
//
//	make mutants
//	go test -tags mutants ./scripts/ci/mutants -v -mutants.only 'nonce|cookie'
//
// A mutant is a copy of one source file with one fragment replaced. The go command
// gets it by -overlay from a temporary directory, so no source file changes. A row
// names the package and a fragment as short as possible, so that it survives moves
// between files and reformatting. TestTable fails if a row no longer matches its
// package. Rows about sockets need the Linux build.
package mutants
