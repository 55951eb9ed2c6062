//go:build !linux

package ledger

func tmpfsChild(string) { exit("mount: only Linux has namespaces") }
