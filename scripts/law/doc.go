// Package law holds the repository's house rules as tests: which package may
// import which, where unsafe and raw system calls live, how long a function or
// a file may be. Each failure prints the reason of the rule.
package law
