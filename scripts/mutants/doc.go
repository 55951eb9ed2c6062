// Package mutants holds the tests to account: it knows one-line faults in the
// rules of the relay, and for each the test that must notice it. A rule whose
// fault no test notices is a rule that nothing keeps.
//
// Nothing of it is built without the build tag mutants:
//
//	make mutants
//	go test -tags mutants ./scripts/mutants -v -timeout 60m
//	go test -tags mutants ./scripts/mutants -v -mutants.only 'nonce|ticket'
//
// A mutant is a copy of one production file with one line changed. It is handed
// to the go command by -overlay from a temporary directory, so no source file is
// touched. The test that is named in its row has to pass without it, to be
// compiled with it, and then to fail as a test fails: a build that breaks, a
// time-out and a test that is skipped prove nothing. The old line has to be in
// its file exactly once; if it is not, the code went on and its row did not. Rows
// about sockets are those of the Linux build.
package mutants
