package sock

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

type machine struct {
	interfaces []net.Interface
	addrs      map[string][]string
	err        error // of the list
	addrsErr   error
	asked      int // for addresses
}

const (
	upAndRunning = net.FlagUp | net.FlagRunning
	loopbackUp   = upAndRunning | net.FlagLoopback
)

func (m *machine) set(name string, flags net.Flags, addrs ...string) {
	m.remove(name)
	m.interfaces = append(m.interfaces, net.Interface{Index: len(m.interfaces) + 1, Name: name, Flags: flags})
	if m.addrs == nil {
		m.addrs = map[string][]string{}
	}
	m.addrs[name] = addrs
}

func (m *machine) remove(name string) {
	m.interfaces = slices.DeleteFunc(m.interfaces, func(i net.Interface) bool { return i.Name == name })
}

func (m *machine) flags(name string, flags net.Flags) {
	for i := range m.interfaces {
		if m.interfaces[i].Name == name {
			m.interfaces[i].Flags = flags
		}
	}
}

func (m *machine) watch(addrs ...string) *Links {
	var list []netip.AddrPort
	for _, a := range addrs {
		list = append(list, netip.MustParseAddrPort(a))
	}
	return watchLinks(list, interfaceSource{
		func() ([]net.Interface, error) { return slices.Clone(m.interfaces), m.err },
		func(i *net.Interface) (addrs []net.Addr, err error) {
			m.asked++
			for _, a := range m.addrs[i.Name] {
				ip, n, err := net.ParseCIDR(a)
				if err != nil {
					return nil, err
				}
				addrs = append(addrs, &net.IPNet{IP: ip, Mask: n.Mask}, &net.UnixAddr{})
			}
			return addrs, m.addrsErr
		},
	})
}

// newMachine is a machine with two cables, a container and a tunnel.
func newMachine() *machine {
	m := new(machine)
	m.set("lo", loopbackUp, "127.0.0.1/8", "::1/128")
	m.set("eth0", upAndRunning, "192.0.2.7/24", "2001:db8::7/64", "fe80::7/64")
	m.set("eth1", upAndRunning, "198.51.100.7/24", "fe80::8/64")
	m.set("veth0", upAndRunning, "fe80::9/64")
	m.set("tun0", net.FlagUp, "10.9.0.1/32")
	return m
}

func TestLinksChosen(t *testing.T) {
	alone := new(machine)
	alone.set("lo", loopbackUp, "127.0.0.1/8", "::1/128")
	local := new(machine)
	local.set("lo", loopbackUp, "::1/128")
	local.set("eth0", upAndRunning, "fe80::7/64")
	for _, tt := range []struct {
		name    string
		machine *machine
		addrs   []string
		want    []string
	}{
		{"IPv4 wildcard", newMachine(), []string{"0.0.0.0:1"}, []string{"eth0", "eth1", "tun0"}},
		{"IPv6 wildcard", newMachine(), []string{"[::]:1"}, []string{"eth0"}},
		{"both", newMachine(), []string{"[::]:1", "0.0.0.0:1"}, []string{"eth0", "eth1", "tun0"}},
		{"nothing but link-local", local, []string{"[::]:1"}, []string{"eth0"}},
		{"nothing but loopback", alone, []string{"0.0.0.0:1", "[::]:1"}, []string{"lo"}},
		{"nothing of the family", local, []string{"0.0.0.0:1"}, nil},
		{"an address", newMachine(), []string{"198.51.100.7:1"}, []string{"eth1"}},
		{"an IPv6 address", newMachine(), []string{"[2001:db8::7]:1"}, []string{"eth0"}},
		{"a mapped address", newMachine(), []string{"[::ffff:192.0.2.7]:1"}, []string{"eth0"}},
		{"another of the network", newMachine(), []string{"192.0.2.8:1"}, nil},
		{"loopback", newMachine(), []string{"127.0.0.1:1"}, []string{"lo"}},
		{"another of loopback", newMachine(), []string{"127.3.2.1:1"}, []string{"lo"}},
		{"IPv6 loopback", newMachine(), []string{"[::1]:1"}, []string{"lo"}},
		{"zone by name", newMachine(), []string{"[fe80::9%veth0]:1"}, []string{"veth0"}},
		{"zone by number", newMachine(), []string{"[fe80::8%3]:1"}, []string{"eth1"}},
		{"address of another zone", newMachine(), []string{"[fe80::9%eth0]:1"}, nil},
		{"nothing", newMachine(), nil, nil},
	} {
		var got []string
		for _, w := range tt.machine.watch(tt.addrs...).watched {
			got = append(got, w.name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestLinksDown(t *testing.T) {
	m := newMachine()
	l := m.watch("0.0.0.0:1")
	expect := func(when, want string) {
		t.Helper()
		if name, down := l.Down(); name != want || down != (want != "") {
			t.Errorf("%s: %q, %v, want %q", when, name, down, want)
		}
	}
	expect("at first", "")
	m.flags("eth1", net.FlagUp)
	expect("no carrier", "eth1")
	m.flags("eth0", net.FlagRunning)
	expect("two down", "eth0")
	m.err = errors.New("no descriptors left")
	expect("no answer", "eth0")
	m.err = nil
	m.flags("eth0", upAndRunning)
	expect("one back", "eth1")
	m.flags("eth1", upAndRunning)
	expect("both back", "")
	m.flags("veth0", 0)
	m.flags("lo", 0)
	expect("others", "")
	m.remove("eth0")
	expect("vanished", "eth0")
	m.set("eth0", net.FlagUp)
	expect("created again, no carrier", "eth0")
	m.flags("eth0", upAndRunning)
	expect("created again", "")
	m.remove("tun0")
	expect("one that never ran vanished", "")
	m.set("tun0", upAndRunning)
	expect("it runs", "")
	m.flags("tun0", 0)
	expect("it runs no more", "tun0")
	if want := 5; m.asked != want {
		t.Errorf("addresses queried %d times, want %d", m.asked, want)
	}
}

func TestLinksLate(t *testing.T) {
	m := newMachine()
	m.err = errors.New("no descriptors left")
	l := m.watch("192.0.2.7:1")
	m.err, m.addrsErr = nil, errors.New("no memory left")
	if name, down := l.Down(); down || len(l.watched) != 0 {
		t.Errorf("%q is down of %v", name, l.watched)
	}
	m.addrsErr = nil
	if name, down := l.Down(); down || len(l.watched) != 1 {
		t.Errorf("%q is down of %v", name, l.watched)
	}
	m.flags("eth0", net.FlagUp)
	if name, down := l.Down(); name != "eth0" || !down {
		t.Errorf("%q, %v", name, down)
	}
}
