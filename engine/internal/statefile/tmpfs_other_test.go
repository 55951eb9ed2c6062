//go:build !linux

package statefile

func tmpfsChild(string) { exit("mount: only Linux has namespaces") }
