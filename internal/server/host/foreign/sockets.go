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

// socket is a UDP socket of the machine.
type socket struct {
	local netip.AddrPort
	uid   string
	inode string
}

// procDir is where Linux tells about sockets and processes.
const procDir = "/proc"

// count returns how many sockets that are not this process's would be given
// datagrams that are meant for addrs. Sockets of other users are not counted:
// the kernel keeps them out of our groups.
func count(proc string, addrs []netip.AddrPort) (int, error) {
	all, own := make(map[string]socket), make(map[string]bool)
	// The kernel shows its table in pieces. Where sockets come and go meanwhile it
	// shows some twice, and skips some, but hardly the same one in two readings.
	for range 2 {
		if err := errors.Join(ownInodes(proc, own), sockets(proc, all)); err != nil {
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

// meets reports whether a socket bound to local receives datagrams for one of
// addrs. The wildcard of IPv6 may receive IPv4 as well.
func meets(local netip.AddrPort, addrs []netip.AddrPort) bool {
	return slices.ContainsFunc(addrs, func(a netip.AddrPort) bool {
		here, there := local.Addr(), a.Addr()
		return local.Port() == a.Port() && (here == there ||
			here.IsUnspecified() && (here.Is6() || there.Is4()) ||
			there.IsUnspecified() && here.Is4() == there.Is4())
	})
}

// sockets adds the UDP sockets of our network namespace to all, by inode.
func sockets(proc string, all map[string]socket) error {
	for _, name := range []string{"udp", "udp6"} {
		text, err := os.ReadFile(filepath.Join(proc, "self", "net", name))
		if name == "udp6" && errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("foreign: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if s, ok := parse(line); ok {
				all[s.inode] = s
			}
		}
	}
	return nil
}

// The columns of the tables.
const (
	localColumn = 1
	uidColumn   = 7
	inodeColumn = 9
	columns     = 10
)

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
	return socket{netip.AddrPortFrom(ip.Unmap(), uint16(port)), f[uidColumn], f[inodeColumn]}, ok
}

// ownInodes adds the inodes of the sockets that this process has open to own.
func ownInodes(proc string, own map[string]bool) error {
	dir := filepath.Join(proc, "self", "fd")
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
