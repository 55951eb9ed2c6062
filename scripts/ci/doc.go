// Command ci runs the checks and tests of .ci/run: the table in stages.go, in its order. The
// suites in network namespaces mostly wait, so they run beside the others, which have less
// priority (nice 10).
//
// Checks and README's test command run each time. A suite that takes minutes and
// tests one part of the repository, such as one package with the race detector, runs when it is due: when the digest of its inputs
// differs from the one in .ci/passed. This command writes that file when a suite has
// passed. Commit it with the change that made the suite due; CI starts from a clean
// clone and cannot, so until then each of its runs includes the suite. With CI_BASE, which the workflow sets
// to the commit that a change is based on, the file counts as of that commit: a change cannot skip its own suites.
//
// The inputs of a suite are the files and directories that its row names, the packages
// of this repository that their Go files import, without their tests and
// Markdown, go.mod and go.sum, and the commands of its make target. Suites that test the binary as
// a whole (lab, fleet, release, openapi, helm) name only the parts that they are about;
// the nightly run, which includes everything, finds the rest.
//
//	go run ./scripts/ci              run what is due, as .ci/run does: make ci
//	go run ./scripts/ci -due         print what is due and why, and run nothing: make due
//	go run ./scripts/ci -only REGEXP run the stages with such names, due or not
//	go run ./scripts/ci -nightly     run everything, with the long forms: make nightly
//
// Each run ends with a table of minutes by stage, also of processor time. A stage that
// fails does not stop the others; then the exit code is 1.
package main
