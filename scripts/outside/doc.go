// Package outside tests that another module can implement Ferry's interfaces: its test writes the module in
// testdata to a directory of its own and runs the tests there.
package outside
