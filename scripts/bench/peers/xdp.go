package main

import (
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// passAll attaches a native program that lets all frames pass to an interface, until stop is
// called: a veth hands on frames that its other end sends from XDP only if it has one.
func passAll(name string) (stop func(), err error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	const pass = 2 // XDP_PASS
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("a program that lets pass: %w", err)
	}
	l, err := link.AttachXDP(link.XDPOptions{Interface: i.Index, Program: p, Flags: link.XDPDriverMode})
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	return func() { l.Close(); p.Close() }, nil
}
