package traffic

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/proto"
)

type sent struct {
	at       time.Duration
	from, to string // address:port
	content  []byte
}

var epoch = time.Unix(1_700_000_000, 123_456_000)

func frame(t testing.TB, s sent, ethernet bool) []byte {
	t.Helper()
	from, to := net.UDPAddrFromAddrPort(mustAddr(t, s.from)), net.UDPAddrFromAddrPort(mustAddr(t, s.to))
	udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port), DstPort: layers.UDPPort(to.Port)}
	var ip gopacket.NetworkLayer = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.IP, DstIP: to.IP,
		Options: []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}}
	kind := layers.EthernetTypeIPv4
	if from.IP.To4() == nil {
		ip, kind = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: from.IP, DstIP: to.IP}, layers.EthernetTypeIPv6
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	all := []gopacket.SerializableLayer{ip.(gopacket.SerializableLayer), udp, gopacket.Payload(s.content)}
	if ethernet {
		mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
		link := &layers.Ethernet{SrcMAC: mac, DstMAC: mac, EthernetType: layers.EthernetTypeDot1Q}
		all = append([]gopacket.SerializableLayer{link, &layers.Dot1Q{VLANIdentifier: 5, Type: kind}}, all...)
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func capture(t testing.TB, all []sent, ethernet bool, snap int) []byte {
	t.Helper()
	link := layers.LinkTypeRaw
	if ethernet {
		link = layers.LinkTypeEthernet
	}
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriterInterface(&b, pcapgo.NgInterface{LinkType: link, TimestampResolution: 9}, pcapgo.DefaultNgWriterOptions)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		f := frame(t, s, ethernet)
		kept := min(len(f), snap)
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: epoch.Add(s.at), CaptureLength: kept, Length: len(f)}, f[:kept]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// game has a host and two players, one of them over IPv6.
func game() []sent {
	const host, host6 = "10.0.0.1:7000", "[2001:db8::1]:7000"
	return []sent{
		{0, "10.0.0.2:5000", host, make([]byte, 40)},
		{3 * time.Millisecond, host, "10.0.0.2:5000", make([]byte, 600)},
		{3*time.Millisecond + 1001, host6, "[2001:db8::3]:6000", make([]byte, 10)},
		{90 * time.Millisecond, "10.0.0.2:5000", host, make([]byte, 1434)},
	}
}

// TestReadCapture: the reader has what tshark has, of each format that editcap writes.
func TestReadCapture(t *testing.T) {
	for _, tool := range []string{"tshark", "editcap"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed (Debian: tshark)", tool)
		}
	}
	dir := t.TempDir()
	for ethernet, snap := range map[bool]int{false: 1 << 16, true: 90} {
		name := filepath.Join(dir, "a.pcapng")
		if err := os.WriteFile(name, capture(t, game(), ethernet, snap), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"pcapng", "pcap", "nsecpcap"} {
			file := filepath.Join(dir, "b."+format)
			if out, err := exec.CommandContext(t.Context(), "editcap", "-F", format, name, file).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			packets, err := readCapture(data)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range packets {
				got = append(got, fmt.Sprintf("%d.%09d %v %d %v %d %d",
					p.at/1e9, p.at%1e9, p.from.Addr(), p.from.Port(), p.to.Addr(), p.to.Port(), p.size+8))
			}
			if want := sharkLines(t, file); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, ethernet %v, snap %d:\n%s\ntshark has\n%s", format, ethernet, snap, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

func sharkLines(t *testing.T, file string) (lines []string) {
	t.Helper()
	args := []string{"-r", file, "-T", "fields", "-E", "separator= "}
	for field := range strings.FieldsSeq("frame.time_epoch ip.src ipv6.src udp.srcport ip.dst ipv6.dst udp.dstport udp.length") {
		args = append(args, "-e", field)
	}
	out, err := exec.CommandContext(t.Context(), "tshark", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		at, err := time.Parse("2006-01-02T15:04:05.999999999Z", f[0])
		if err == nil {
			f[0] = fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond())
		} else if whole, part, ok := strings.Cut(f[0], "."); ok {
			f[0] = whole + "." + (part + "000000000")[:9]
		}
		lines = append(lines, strings.Join(f, " "))
	}
	return lines
}

// TestCapture: a capture without a relay has times and sizes of the datagrams of its host.
func TestCapture(t *testing.T) {
	other := sent{95 * time.Millisecond, "10.0.0.9:53", "10.0.0.2:5000", make([]byte, 2000)}
	got, err := parseCapture(capture(t, append(game(), other), true, 90), "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	ms := time.Millisecond
	want := []bench.TrafficDatagram{{At: 0, Size: 40}, {At: 3 * ms, Size: 600, Down: true}, {At: 90 * ms, Size: 1434}}
	if got.Players != 1 || got.Cycle != 135*ms || !reflect.DeepEqual(got.Datagrams, want) {
		t.Errorf("%+v", got)
	}
	got, err = parseCapture(capture(t, game()[2:3:3], false, 90), "[2001:db8::1]:7000")
	if err == nil || !strings.Contains(err.Error(), "fewer than two datagrams") {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRelayCapture: a capture at the relay has each RELAY twice, and counts as the content that was sent.
func TestRelayCapture(t *testing.T) {
	const relay, relay2 = "192.0.2.1:7777", "[2001:db8::1]:7777"
	host, a, b := proto.AllocationID{1}, proto.AllocationID{2}, proto.AllocationID{3}
	at := map[proto.AllocationID][2]string{host: {"10.0.0.1:1000", relay}, a: {"10.0.0.2:1000", relay}, b: {"[2001:db8::3]:1000", relay2}}
	var all []sent
	send := func(ms int, from proto.AllocationID, m proto.Message) {
		all = append(all, sent{time.Duration(ms) * time.Millisecond, at[from][0], at[from][1], m.Append(nil)})
	}
	forward := func(ms int, from, to proto.AllocationID, size int) {
		m := proto.Relay{From: from, To: to, Payload: make([]byte, size)}
		send(ms, from, m)
		all = append(all, sent{time.Duration(ms)*time.Millisecond + time.Microsecond, at[to][1], at[to][0], m.Append(nil)})
	}
	for _, id := range []proto.AllocationID{host, a, b} {
		send(0, id, proto.Bind{ConnectionData: make([]byte, 255)})
	}
	send(1, a, proto.ConnectRequest{ID: a, ConnectionData: make([]byte, 255)})
	forward(100, a, host, 10)
	forward(110, host, a, 700)
	pair := capture(t, all, true, 128)
	forward(110, host, b, 800)
	send(115, b, proto.Ping{ID: b})
	forward(130, b, host, 50)
	full := capture(t, all, true, 128)
	ms := time.Millisecond
	want := []bench.TrafficDatagram{
		{At: 0, Size: 24}, {At: 10 * ms, Size: 700, Down: true},
		{At: 10 * ms, Size: 800, Player: 1, Down: true}, {At: 30 * ms, Size: 50, Player: 1},
	}
	answer := bench.TrafficDatagram{At: 10*ms - time.Microsecond, Size: 700, Down: true}
	for name, c := range map[string]struct {
		data []byte
		host string
		want []bench.TrafficDatagram
	}{
		"all":               {full, "", want},
		"by address":        {full, "10.0.0.1", want},
		"by id":             {full, host.String(), want},
		"a pair":            {pair, "", want[:2]},
		"without handshake": {capture(t, all[4:8], true, 128), "10.0.0.1:1000", want[:2]},
		"at the host":       {capture(t, []sent{all[5], all[6]}, true, 128), host.String(), []bench.TrafficDatagram{want[0], answer}},
	} {
		got, err := parseCapture(c.data, c.host)
		if err != nil || !reflect.DeepEqual(got.Datagrams, c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestCaptureErrors: what cannot be sent is rejected, with a count or the names to choose from.
func TestCaptureErrors(t *testing.T) {
	large := game()
	for _, size := range []int{1435, 1460} {
		large = append(large, sent{time.Second, "10.0.0.2:5000", "10.0.0.1:7000", make([]byte, size)})
	}
	var many []sent
	for i := range 256 {
		many = append(many, sent{time.Duration(i), "10.0.1." + strconv.Itoa(i) + ":1", "10.0.0.1:7000", make([]byte, 40)})
	}
	whole := capture(t, game(), false, 1<<16)
	for _, c := range []struct {
		name, host string
		data       []byte
		want       string
	}{
		{"large", "10.0.0.1", capture(t, large, false, 90),
			"2 of 5 datagrams have more than the 1434 bytes that a relay forwards; the largest has 1460"},
		{"two", "", capture(t, game()[:2], false, 90),
			"2 participants are in all datagrams; name the host, by --traffic-host, of 10.0.0.1:7000, 10.0.0.2:5000"},
		{"none", "", whole, "0 participants are in all datagrams"},
		{"other", "10.0.0.7", whole, `the host "10.0.0.7" is 0 of the participants 10.0.0.1:7000, `},
		{"empty", "", capture(t, nil, false, 90), "no UDP datagrams"},
		{"many", "10.0.0.1", capture(t, many, false, 90), "more than 255 players"},
		{"at once", "10.0.0.1", capture(t, many[:1], false, 90), "fewer than two datagrams"},
		{"cut off", "10.0.0.1", whole[:len(whole)-5], "damaged"},
	} {
		if got, err := parseCapture(c.data, c.host); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", c.name, got, err, c.want)
		}
	}
}

// FuzzCapture: no content makes the reader fail otherwise than with an error, or take long.
func FuzzCapture(f *testing.F) {
	whole := capture(f, game(), true, 1<<16)
	f.Add(whole)
	old := []byte("\xD4\xC3\xB2\xA1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00e\x00\x00\x00" +
		"\x01\x00\x00\x00\x01\x00\x00\x00(\x00\x00\x00(\x00\x00\x00")
	f.Add(append(old, frame(f, game()[0], false)[:40]...))
	f.Fuzz(func(t *testing.T, data []byte) {
		if captureOrder(data) == nil {
			return
		}
		if traffic, err := parseCapture(data, ""); err == nil && len(traffic.Datagrams) < 2 {
			t.Errorf("%+v", traffic)
		}
	})
}

func mustAddr(t testing.TB, text string) netip.AddrPort {
	t.Helper()
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
