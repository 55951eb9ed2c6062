// Package capture writes the messages of a match as a pcapng file, for Wireshark and tshark.
//
// Each message becomes an IP packet with a UDP header between the player and the relay, and
// a comment with its way and its outcome. A session of DTLS or WebSocket has no address
// here: it gets one of 2001:db8::/32 (RFC 3849), and its messages are those in the session.
package capture

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"io"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/privateapi"
)

const (
	// relayPort is the port of the relay in sessions, by which Wireshark finds the dissector,
	// and sessionPort that of the player.
	relayPort   = 7777
	sessionPort = 49152
	hopLimit    = 64
	protocolUDP = 17
)

// Blocks and options of pcapng, draft-ietf-opsawg-pcapng.
const (
	blockSection        = 0x0a0d0d0a
	blockInterface      = 1
	blockStatistics     = 5
	blockEnhancedPacket = 6

	optionComment      = 1 // in each block
	optionApplication  = 4 // of a section
	optionName         = 2 // of an interface
	optionResolution   = 9
	optionReceived     = 4 // of statistics
	optionDropped      = 5
	linkTypeRaw        = 101
	nanosecondsPerUnit = 9 // a power of ten
)

// Writer writes one file. One goroutine may use it.
type Writer struct {
	out      *bufio.Writer
	block    []byte // being written
	packet   []byte
	messages uint64
}

// NewWriter begins a file; the comment is about all of it.
func NewWriter(w io.Writer, comment string) (*Writer, error) {
	c := &Writer{out: bufio.NewWriter(w)}
	c.begin(blockSection, 0x1a2b3c4d)
	c.block = le.AppendUint16(c.block, 1) // version 1.0
	c.block = le.AppendUint16(c.block, 0)
	c.block = le.AppendUint64(c.block, 1<<64-1) // The length of the section is not known.
	c.option(optionComment, []byte(comment))
	c.option(optionApplication, []byte("ferry"))
	if err := c.end(); err != nil {
		return nil, err
	}
	c.begin(blockInterface, linkTypeRaw, 0) // The length of packets is not limited.
	c.option(optionName, []byte("relay"))
	c.option(optionResolution, []byte{nanosecondsPerUnit})
	return c, c.end()
}

// Write adds a message.
func (w *Writer) Write(m *privateapi.Captured) error {
	player, relay := m.Player, m.Relay
	if !player.IsValid() {
		player, relay = sessionAddrs(m.Transport, m.Session)
	}
	from, to, comment := player, relay, "received over "+m.Transport+": "+outcomeText(m)
	if m.Sent {
		from, to, comment = relay, player, "sent over "+m.Transport
	}
	w.packet = appendPacket(w.packet[:0], from, to, m.Message)
	w.messages++
	at, n := uint64(m.Time.UnixNano()), uint32(len(w.packet))
	w.begin(blockEnhancedPacket, 0, uint32(at>>32), uint32(at), n, n)
	w.block = pad(append(w.block, w.packet...))
	w.option(optionComment, []byte(comment))
	return w.end()
}

// Flush writes what is buffered.
func (w *Writer) Flush() error { return w.out.Flush() }

// Close ends the file, with the number of messages that are missing in it.
func (w *Writer) Close(lost uint64) error {
	at := uint64(time.Now().UnixNano())
	w.begin(blockStatistics, 0, uint32(at>>32), uint32(at))
	w.option(optionReceived, le.AppendUint64(nil, w.messages+lost))
	w.option(optionDropped, le.AppendUint64(nil, lost))
	if err := w.end(); err != nil {
		return err
	}
	return w.Flush()
}

var le = binary.LittleEndian

func (w *Writer) begin(kind uint32, words ...uint32) {
	w.block = le.AppendUint32(w.block[:0], kind)
	w.block = le.AppendUint32(w.block, 0)
	for _, v := range words {
		w.block = le.AppendUint32(w.block, v)
	}
}

// option adds an option to the block; an empty value adds none.
func (w *Writer) option(code uint16, value []byte) {
	if len(value) == 0 {
		return
	}
	w.block = le.AppendUint16(w.block, code)
	w.block = le.AppendUint16(w.block, uint16(len(value)))
	w.block = pad(append(w.block, value...))
}

func (w *Writer) end() error {
	w.block = le.AppendUint32(w.block, 0)
	n := uint32(len(w.block) + 4)
	w.block = le.AppendUint32(w.block, n)
	le.PutUint32(w.block[4:], n)
	_, err := w.out.Write(w.block)
	return err
}

// pad adds zeros up to a multiple of four bytes.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

func outcomeText(m *privateapi.Captured) string {
	if m.Dropped != "" {
		return "dropped, " + m.Dropped
	}
	return cmp.Or(m.Outcome, "not decided when the capture ended")
}

var sessionKinds = map[string]byte{"dtls": 3, "ws": 4}

// sessionAddrs returns addresses for a session: 2001:db8:0:KIND::SERIAL and 2001:db8::1.
func sessionAddrs(transport string, session uint64) (player, relay netip.AddrPort) {
	ip := [16]byte{0x20, 0x01, 0x0d, 0xb8, 7: sessionKinds[transport]}
	binary.BigEndian.PutUint64(ip[8:], session)
	return netip.AddrPortFrom(netip.AddrFrom16(ip), sessionPort),
		netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}), relayPort)
}

func appendPacket(b []byte, from, to netip.AddrPort, msg []byte) []byte {
	begin, size := len(b), uint16(8+len(msg))
	var pseudo uint32 // sum of the pseudo header that the checksum of UDP covers
	if from.Addr().Unmap().Is4() || to.Addr().Unmap().Is4() {
		src, dst := ip4(from), ip4(to)
		b = append(b, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, 20+size)
		b = append(b, 0, 0, 0, 0, hopLimit, protocolUDP, 0, 0)
		b = append(append(b, src[:]...), dst[:]...)
		binary.BigEndian.PutUint16(b[begin+10:], checksum(b[begin:], 0))
		pseudo = sum(b[begin+12:])
	} else {
		src, dst := from.Addr().As16(), to.Addr().As16()
		b = append(b, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, size)
		b = append(b, protocolUDP, hopLimit)
		b = append(append(b, src[:]...), dst[:]...)
		pseudo = sum(b[begin+8:])
	}
	header := len(b)
	for _, v := range []uint16{from.Port(), to.Port(), size, 0} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	b = append(b, msg...)
	check := checksum(b[header:], pseudo+protocolUDP+uint32(size))
	if check == 0 {
		check = 0xffff // 0 means none (RFC 768).
	}
	binary.BigEndian.PutUint16(b[header+6:], check)
	return b
}

func sum(b []byte) (s uint32) {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

// checksum is that of IP and UDP (RFC 1071) over b and what was added before.
func checksum(b []byte, before uint32) uint16 {
	s := before + sum(b)
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// ip4 returns an IPv4 address; that of a wildcard listener, which has both families, is
// 0.0.0.0.
func ip4(addr netip.AddrPort) [4]byte {
	if ip := addr.Addr().Unmap(); ip.Is4() {
		return ip.As4()
	}
	return [4]byte{}
}
