//go:build linux && !sockportable

package sock

import (
	"math"
	"os"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// byHash is the result of a program that leaves the selection to the hash: the kernel
// ignores the number of a socket that is not in the group.
const byHash = math.MaxUint32

// steerByCPU attaches a program to the group of s that selects the socket by the CPU that
// handles the datagram. SO_INCOMING_CPU of the sockets has the same effect from Linux 6.2
// on, but the kernel then looks at the sockets one after another.
func (s *socket) steerByCPU(cpus []int) error {
	raw, err := bpf.Assemble(cpuProgram(cpus))
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, ins := range raw {
		filter[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	return os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_CBPF",
		unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}))
}

// cpuProgram returns a program that returns i on CPU cpus[i], and byHash on others. It
// finds the CPU by binary search: with 256 sockets it has 1,279 of the 4,096 instructions that
// the kernel permits, and executes at most 19.
func cpuProgram(cpus []int) []bpf.Instruction {
	sockets := make([]int, len(cpus))
	for i := range sockets {
		sockets[i] = i
	}
	slices.SortFunc(sockets, func(a, b int) int { return cpus[a] - cpus[b] })
	return append([]bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtCPUID}}, search(cpus, sockets)...)
}

// search returns instructions that look for the loaded CPU among those of the sockets,
// which are sorted by CPU. A conditional jump has 8 bits for its distance, so a
// jump without condition passes the lower half.
func search(cpus, sockets []int) []bpf.Instruction {
	middle := len(sockets) / 2
	cpu := uint32(cpus[sockets[middle]])
	if middle == 0 {
		return []bpf.Instruction{
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: cpu, SkipTrue: 1},
			bpf.RetConstant{Val: uint32(sockets[0])},
			bpf.RetConstant{Val: byHash},
		}
	}
	low, high := search(cpus, sockets[:middle]), search(cpus, sockets[middle:])
	return slices.Concat([]bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: cpu, SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(low))},
	}, low, high)
}
