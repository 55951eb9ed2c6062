package foreign

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

type socket struct {
	local netip.AddrPort
	state string
	uid   string
	inode string
}

const procDir = "/proc"

// count returns how many sockets of others would be given datagrams for addrs. Those of other
// users are not counted: the kernel keeps them out of our groups.
func count(proc string, addrs []netip.AddrPort) (int, error) {
	all, own := make(map[string]socket), make(map[string]bool)
	// The kernel shows its table in pieces. Where sockets come and go meanwhile it
	// shows some twice, and skips some, but hardly the same one in two readings.
	for range 2 {
		if err := errors.Join(inodes(proc, "self", own), sockets(proc, "udp", all)); err != nil {
			return 0, err
		}
	}
	users := make(map[string]bool)
	for inode := range own {
		if s, ok := all[inode]; ok {
			users[s.uid] = true
		}
	}
	n := 0
	for inode, s := range all {
		if !own[inode] && users[s.uid] && meets(s.local, addrs) {
			n++
		}
	}
	return n, nil
}

// meets: the wildcard of IPv6 may receive IPv4 as well.
func meets(local netip.AddrPort, addrs []netip.AddrPort) bool {
	return slices.ContainsFunc(addrs, func(a netip.AddrPort) bool {
		here, there := local.Addr(), a.Addr()
		return local.Port() == a.Port() && (here == there ||
			here.IsUnspecified() && (here.Is6() || there.Is4()) ||
			there.IsUnspecified() && here.Is4() == there.Is4())
	})
}

type Holder struct {
	Process int
	Program string // the name of its program, at most 15 bytes
}

// FindHolder returns a process with a UDP socket at an address, or one that listens there, for
// the networks "udp" and "tcp". It finds none where the system does not tell; of the processes of
// other users it tells root only.
func FindHolder(network string, addr netip.AddrPort) (Holder, bool) {
	return findHolder(procDir, network, addr)
}

func findHolder(proc, network string, addr netip.AddrPort) (Holder, bool) {
	all := make(map[string]socket)
	if err := sockets(proc, network, all); err != nil {
		return Holder{}, false
	}
	processes, err := os.ReadDir(proc)
	if err != nil {
		return Holder{}, false
	}
	for _, p := range processes {
		id, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		own := make(map[string]bool)
		_ = inodes(proc, p.Name(), own) // It has ended, or belongs to another user.
		for inode := range own {
			if s, ok := all[inode]; ok && meets(s.local, []netip.AddrPort{addr}) {
				name, _ := os.ReadFile(filepath.Join(proc, p.Name(), "comm"))
				return Holder{id, strings.TrimSpace(string(name))}, true
			}
		}
	}
	return Holder{}, false
}

// sockets adds the sockets of our network namespace by inode: of tcp those that listen.
func sockets(proc, network string, all map[string]socket) error {
	for _, name := range []string{network, network + "6"} {
		text, err := os.ReadFile(filepath.Join(proc, "self", "net", name))
		if name != network && errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("foreign: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if s, ok := parse(line); ok && (network == "udp" || s.state == listening) {
				all[s.inode] = s
			}
		}
	}
	return nil
}

const (
	localColumn = 1
	stateColumn = 3
	uidColumn   = 7
	inodeColumn = 9
	columns     = 10
)

const listening = "0A"

// parse reads a line of a table; the first one is a title.
func parse(line string) (s socket, ok bool) {
	f := strings.Fields(line)
	if len(f) < columns {
		return s, false
	}
	host, number, ok := strings.Cut(f[localColumn], ":")
	raw, err := hex.DecodeString(host)
	port, err2 := strconv.ParseUint(number, 16, 16)
	if !ok || err != nil || err2 != nil || len(raw)%4 != 0 {
		return s, false
	}
	// The kernel prints words as the processor has them.
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	ip, ok := netip.AddrFromSlice(raw)
	return socket{netip.AddrPortFrom(ip.Unmap(), uint16(port)), f[stateColumn], f[uidColumn], f[inodeColumn]}, ok
}

func inodes(proc, process string, own map[string]bool) error {
	dir := filepath.Join(proc, process, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("foreign: %w", err)
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed since
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return nil
}
