// Package capture writes the messages of a match as a pcapng file, for Wireshark and tshark.
//
// Each message becomes an IP packet with a UDP header between the player and the relay, and
// a comment with its way and its outcome. A session of DTLS or WebSocket has no address
// here: it gets one of 2001:db8::/32 (RFC 3849), and its messages are those in the session.
package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ferryrelay/ferry/engine"
)

const (
	// relayPort is the port of the relay in sessions, by which Wireshark finds the dissector,
	// and sessionPort that of the player.
	relayPort   = 7777
	sessionPort = 49152
	hopLimit    = 64
)

// Writer writes one file. One goroutine may use it.
type Writer struct {
	out      *pcapgo.NgWriter
	packet   gopacket.SerializeBuffer
	messages uint64
}

// NewWriter begins a file; the comment is about all of it.
func NewWriter(w io.Writer, comment string) (*Writer, error) {
	out, err := pcapgo.NewNgWriterInterface(w,
		pcapgo.NgInterface{Name: "relay", LinkType: layers.LinkTypeRaw, TimestampResolution: 9},
		pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "ferry", Comment: comment}})
	return &Writer{out: out, packet: gopacket.NewSerializeBuffer()}, err
}

// Write adds a message.
func (w *Writer) Write(m *engine.Captured) error {
	player, relay := m.Endpoint.AddrPort(), m.Relay
	if !player.IsValid() {
		player, relay = sessionAddrs(m.Endpoint)
	}
	from, to, comment := player, relay, "received over "+m.Endpoint.Kind().String()+": "+outcomeText(m.Outcome)
	if m.Sent {
		from, to, comment = relay, player, "sent over "+m.Endpoint.Kind().String()
	}
	if err := w.serialize(from, to, m.Message); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	content := w.packet.Bytes()
	info := gopacket.CaptureInfo{Timestamp: m.Time, CaptureLength: len(content), Length: len(content)}
	w.messages++
	return w.out.WritePacketWithOptions(info, content, pcapgo.NgPacketOptions{Comments: []string{comment}})
}

// Flush writes what is buffered.
func (w *Writer) Flush() error { return w.out.Flush() }

// Close ends the file, with the number of messages that are missing in it.
func (w *Writer) Close(lost uint64) error {
	err := w.out.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{PacketsReceived: w.messages + lost, PacketsDropped: lost})
	if err == nil {
		err = w.out.Flush()
	}
	return err
}

func outcomeText(o engine.Outcome) string {
	switch {
	case o == engine.NumOutcomes:
		return "not decided when the capture ended"
	case o.Dropped():
		return "dropped, " + o.String()
	}
	return o.String()
}

// sessionAddrs returns addresses for a session: 2001:db8:0:KIND::SERIAL and 2001:db8::1.
func sessionAddrs(ep engine.Endpoint) (player, relay netip.AddrPort) {
	ip := [16]byte{0x20, 0x01, 0x0d, 0xb8, 7: byte(ep.Kind())}
	binary.BigEndian.PutUint64(ip[8:], ep.Serial())
	return netip.AddrPortFrom(netip.AddrFrom16(ip), sessionPort),
		netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}), relayPort)
}

func (w *Writer) serialize(from, to netip.AddrPort, msg []byte) error {
	udp := layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if from.Addr().Unmap().Is4() || to.Addr().Unmap().Is4() {
		a, b := ip4(from), ip4(to)
		ip := layers.IPv4{Version: 4, TTL: hopLimit, Protocol: layers.IPProtocolUDP, SrcIP: a[:], DstIP: b[:]}
		_ = udp.SetNetworkLayerForChecksum(&ip) // It fails for other layers only.
		return gopacket.SerializeLayers(w.packet, options, &ip, &udp, gopacket.Payload(msg))
	}
	a, b := from.Addr().As16(), to.Addr().As16()
	ip := layers.IPv6{Version: 6, HopLimit: hopLimit, NextHeader: layers.IPProtocolUDP, SrcIP: a[:], DstIP: b[:]}
	_ = udp.SetNetworkLayerForChecksum(&ip)
	return gopacket.SerializeLayers(w.packet, options, &ip, &udp, gopacket.Payload(msg))
}

// ip4 returns an IPv4 address; that of a wildcard listener, which has both families, is
// 0.0.0.0.
func ip4(addr netip.AddrPort) [4]byte {
	if ip := addr.Addr().Unmap(); ip.Is4() {
		return ip.As4()
	}
	return [4]byte{}
}
