package wireshark

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/utp"
	"github.com/ferryrelay/ferry/proto"
)

// fields are what the test reads of each datagram. A datagram has those of its want, and
// no other.
var fields = []string{
	"_ws.col.Protocol", "_ws.col.Info", "_ws.expert.message",
	"ferry.signature", "ferry.version", "ferry.type", "ferry.allocation", "ferry.from", "ferry.to",
	"ferry.accept_mode", "ferry.nonce", "ferry.connection_data_length", "ferry.connection_data",
	"ferry.mac", "ferry.number", "ferry.payload_length", "ferry.payload", "ferry.error_code",
	"ferry.unexpected", "ferry.qos", "ferry.qos.title_length", "ferry.qos.title",
	"ferry.qos.sequence", "ferry.qos.id", "ferry.qos.time",
	"utp.signature", "utp.version", "utp.handshake", "utp.kind", "utp.token", "utp.pipeline",
	"utp.length", "utp.mtu_size", "utp.payload",
	"_ws.malformed.expert", "_ws.short", "_ws.lua.error", // of no datagram: these are errors of the script
}

// values are the fields of one datagram. A field that occurs several times has its values
// separated by "|".
type values map[string]string

func (v values) with(more values) values {
	all := values{}
	for name, value := range v {
		all[name] = value
	}
	for name, value := range more {
		all[name] = value
	}
	return all
}

func header(typ proto.Type, info string, more values) values {
	return values{
		"_ws.col.Protocol": "Ferry", "_ws.col.Info": strings.TrimSpace(typ.String() + " " + info),
		"ferry.signature": "0xda72", "ferry.version": "0", "ferry.type": fmt.Sprint(uint8(typ)),
	}.with(more)
}

func plain(info string) values { return values{"_ws.col.Protocol": "UDP", "_ws.col.Info": info} }

// datagram is one of the file, and what tshark has to show of it.
type datagram struct {
	name    string
	port    uint16 // of the relay; 0 is one that is in no preference
	payload []byte
	snap    int // bytes of the payload that are captured; 0 is all
	want    values
}

const (
	host   = "10111213-1415-1617-1819-1a1b1c1d1e1f"
	joiner = "20212223-2425-2627-2829-2a2b2c2d2e2f"

	heuristicPort = 40_000 // only heuristics find the dissector
	decodeAsPort  = 40_001 // -d udp.port==40001,ferry
	transportPort = 40_002 // -d udp.port==40002,utp
	defaultPort   = 7777   // of the preference
	clientPort    = 50_000
)

func id(text string) proto.AllocationID {
	id, err := proto.ParseAllocationID(text)
	if err != nil {
		panic(err)
	}
	return id
}

func pair(typ proto.Type, more values) values {
	return header(typ, "10111213 > 20212223", values{
		"ferry.from": host, "ferry.to": joiner, "ferry.allocation": host + "|" + joiner,
	}).with(more)
}

func relayed(payload []byte, info string, more values) values {
	want := pair(proto.TypeRelay, values{
		"_ws.col.Info":         fmt.Sprintf("RELAY 10111213 > 20212223 %d bytes%s", len(payload), info),
		"ferry.payload_length": fmt.Sprint(len(payload)),
		"ferry.payload":        hex.EncodeToString(payload),
	})
	return want.with(more)
}

func relay(payload []byte) []byte {
	return proto.Relay{From: id(host), To: id(joiner), Payload: payload}.Append(nil)
}

func messages() []datagram {
	data := bytes.Repeat([]byte{0xC0, 0xDE}, 100)
	var key proto.Key
	var signer proto.Signer
	bind := signer.Append(nil, proto.Bind{Nonce: 0x1234, ConnectionData: data}, &key)
	mac := hex.EncodeToString(bind[len(bind)-len(proto.Bind{}.MAC):])
	bindFields := header(proto.TypeBind, "nonce=4660", values{
		"ferry.accept_mode": "0", "ferry.nonce": "4660", "ferry.connection_data_length": "200",
		"ferry.connection_data": hex.EncodeToString(data), "ferry.mac": mac,
	})
	connect := header(proto.TypeConnectRequest, "20212223", values{
		"ferry.allocation": joiner, "ferry.connection_data_length": "200",
		"ferry.connection_data": hex.EncodeToString(data),
	})
	zero := strings.Repeat("00", 255)
	return []datagram{
		{name: "BIND", payload: bind, want: bindFields},
		{name: "BIND, redacted", payload: proto.Bind{Nonce: 1, ConnectionData: make([]byte, 255)}.Append(nil),
			want: header(proto.TypeBind, "nonce=1", values{
				"ferry.accept_mode": "0", "ferry.nonce": "1", "ferry.connection_data_length": "255",
				"ferry.connection_data": zero, "ferry.mac": zero[:2*len(proto.Bind{}.MAC)],
				"_ws.expert.message": "Connection data and MAC are zero: a capture of Ferry removed them",
			})},
		{name: "BIND_RECEIVED", payload: proto.BindReceived{}.Append(nil), want: header(proto.TypeBindReceived, "", nil)},
		{name: "PING", payload: proto.Ping{ID: id(host), Number: 258}.Append(nil),
			want: header(proto.TypePing, "10111213", values{"ferry.allocation": host, "ferry.number": "258"})},
		{name: "CONNECT_REQUEST", payload: proto.ConnectRequest{ID: id(joiner), ConnectionData: data}.Append(nil), want: connect},
		{name: "ACCEPTED", payload: proto.Accepted{From: id(host), To: id(joiner)}.Append(nil), want: pair(proto.TypeAccepted, nil)},
		{name: "REJECTED", payload: proto.Rejected{From: id(host), To: id(joiner)}.Append(nil), want: pair(proto.TypeRejected, nil)},
		{name: "DISCONNECT", payload: proto.Disconnect{From: id(host), To: id(joiner)}.Append(nil), want: pair(proto.TypeDisconnect, nil)},
		{name: "RELAY", payload: relay([]byte("game")), want: relayed([]byte("game"), "", nil)},
		{name: "RELAY, empty", payload: relay(nil), want: relayed(nil, "", nil)},
		{name: "CLOSE", payload: proto.Close{ID: id(host)}.Append(nil),
			want: header(proto.TypeClose, "10111213", values{"ferry.allocation": host})},
		{name: "BIND at the default port", port: defaultPort, payload: bind, want: bindFields},
	}
}

func errorMessages() (all []datagram) {
	for code := proto.ErrorVersion; code <= proto.ErrorSelfConnect+1; code++ {
		text := code.String()
		if code > proto.ErrorSelfConnect {
			text = "unknown code"
		}
		want := header(proto.TypeError, fmt.Sprintf("10111213 %d (%s)", code, text), values{
			"ferry.allocation": host, "ferry.error_code": fmt.Sprint(uint8(code)),
		})
		if code == proto.ErrorTimeout || code == proto.ErrorNotFound {
			want["_ws.expert.message"] = "The game of a Unity client ends on this error"
		}
		all = append(all, datagram{name: "ERROR " + text, payload: proto.Error{ID: id(host), Code: code}.Append(nil), want: want})
	}
	return all
}

// malformed are messages that package proto does not accept, and datagrams that are none.
func malformed() []datagram {
	ping := proto.Ping{ID: id(host), Number: 1}.Append(nil)
	pingFields := header(proto.TypePing, "10111213", values{"ferry.allocation": host, "ferry.number": "1"})
	mismatch := func(have, want int) values {
		return values{"_ws.expert.message": fmt.Sprintf("The message has %d bytes, not %d", have, want)}
	}
	wrongLength := relay([]byte("game"))
	wrongLength[37] = 5
	version := slices.Clone(ping)
	version[2] = 1
	reserved := slices.Clone(ping)
	reserved[3] = 5
	large := slices.Concat(relay(make([]byte, proto.MaxContent)), []byte{0})
	large[36], large[37] = (proto.MaxContent+1)>>8, (proto.MaxContent+1)&0xFF
	short := func(typ proto.Type, want int, more values) datagram {
		return datagram{name: "only the header of " + typ.String(), payload: []byte{0xDA, 0x72, 0, byte(typ)},
			want: header(typ, "", mismatch(4, want)).with(more)}
	}
	return []datagram{
		{name: "PING with a further byte", payload: append(slices.Clone(ping), 0xEE),
			want: pingFields.with(mismatch(23, 22)).with(values{"ferry.unexpected": "ee"})},
		{name: "PING cut in its id", payload: ping[:12],
			want: header(proto.TypePing, "?", mismatch(12, 22))},
		short(proto.TypeBind, 40, nil),
		short(proto.TypePing, 22, values{"_ws.col.Info": "PING ?"}),
		short(proto.TypeConnectRequest, 21, values{"_ws.col.Info": "CONNECT_REQUEST ?"}),
		short(proto.TypeRelay, 38, values{"_ws.col.Info": "RELAY ? > ?"}),
		short(proto.TypeError, 21, values{"_ws.col.Info": "ERROR ?"}),
		{name: "BIND without MAC", payload: proto.Bind{ConnectionData: []byte{1, 2}}.Append(nil)[:10],
			want: header(proto.TypeBind, "nonce=0", values{"ferry.accept_mode": "0", "ferry.nonce": "0",
				"ferry.connection_data_length": "2", "ferry.connection_data": "0102"}).with(mismatch(10, 42))},
		{name: "RELAY that is too short for its length", payload: wrongLength,
			want: relayed([]byte("game"), "", mismatch(42, 43)).with(values{
				"_ws.col.Info": "RELAY 10111213 > 20212223 5 bytes", "ferry.payload_length": "5"})},
		{name: "RELAY above the limit", payload: large,
			want: relayed(make([]byte, proto.MaxContent+1), "", values{"_ws.expert.message": "The message is longer than 1472 bytes"})},
		{name: "a reserved type, decode as", port: decodeAsPort, payload: reserved,
			want: values{"_ws.col.Protocol": "Ferry", "_ws.col.Info": "TYPE(5)", "ferry.signature": "0xda72", "ferry.version": "0",
				"ferry.type":       "5",
				"ferry.unexpected": hex.EncodeToString(reserved[4:]), "_ws.expert.message": "The type is reserved or unknown"}},
		{name: "another version, decode as", port: decodeAsPort, payload: version,
			want: header(proto.TypePing, "", values{"ferry.version": "1", "ferry.unexpected": hex.EncodeToString(version[4:]),
				"_ws.expert.message": "The version is not 0"})},
		{name: "another version, heuristic", payload: version, want: plain("50000 → 40000 Len=22")},
		{name: "a reserved type, heuristic", payload: reserved, want: plain("50000 → 40000 Len=22")},
		{name: "three bytes", port: decodeAsPort, payload: ping[:3], want: plain("50000 → 40001 Len=3")},
		{name: "other data at the default port", port: defaultPort, payload: []byte("hello"), want: plain("50000 → 7777 Len=5")},
	}
}

// truncated are messages of which only the first bytes were captured. They are not malformed.
func truncated() []datagram {
	payload := bytes.Repeat([]byte{0xAB}, 100)
	bind := proto.Bind{Nonce: 7, ConnectionData: payload}.Append(nil)
	return []datagram{
		{name: "RELAY cut in its payload", payload: relay(payload), snap: 40,
			want: relayed(payload, "", values{"ferry.payload": "abab"})},
		{name: "RELAY cut in an id", payload: relay(payload), snap: 30,
			want: header(proto.TypeRelay, "10111213 > ?", values{"ferry.from": host, "ferry.allocation": host})},
		{name: "BIND cut in its data", payload: bind, snap: 10,
			want: header(proto.TypeBind, "nonce=7", values{"ferry.accept_mode": "0", "ferry.nonce": "7",
				"ferry.connection_data_length": "100", "ferry.connection_data": "abab"})},
		{name: "BIND cut in its nonce", payload: bind, snap: 6,
			want: header(proto.TypeBind, "", values{"ferry.accept_mode": "0"})},
		{name: "ERROR cut before its code", payload: proto.Error{ID: id(host), Code: 1}.Append(nil), snap: 20,
			want: header(proto.TypeError, "10111213", values{"ferry.allocation": host})},
	}
}

// probes are QoS probes, which only a configured port shows.
func probes() []datagram {
	request := proto.QoSRequest{Title: []byte("t"), Sequence: 3, ID: 0x0102, Time: 77}
	fields := values{"ferry.qos.sequence": "3", "ferry.qos.id": "258", "ferry.qos.time": "77", "_ws.col.Protocol": "Ferry"}
	return []datagram{
		{name: "QoS request", port: defaultPort, payload: request.Append(nil), want: fields.with(values{
			"_ws.col.Info": "QoS request", "ferry.qos": "0x59", "ferry.qos.title_length": "2", "ferry.qos.title": "74"})},
		{name: "QoS response", port: decodeAsPort, payload: request.Response().Append(nil), want: fields.with(values{
			"_ws.col.Info": "QoS response", "ferry.qos": "0x95"})},
		{name: "QoS request at another port", payload: request.Append(nil), want: plain("50000 → 40000 Len=15")},
	}
}

// transport are packets of internal/utp, in RELAY and without.
func transport() (all []datagram) {
	const token, tokenText = utp.Token(0x0706050403020100), "0001020304050607"
	const unknown, unknownText = utp.Token(0x1111111111111111), "1111111111111111"
	shake := func(kind string, more values) values {
		return values{"utp.signature": "UTP", "utp.version": "1", "utp.handshake": kind, "utp.token": tokenText}.with(more)
	}
	message := func(kind string, more values) values {
		return values{"utp.kind": kind, "utp.token": tokenText}.with(more)
	}
	cut := utp.Packet{Kind: utp.KindHeartbeat, Token: token}.Append(nil)
	for _, c := range []struct {
		name   string
		packet []byte
		want   values
	}{
		{"request", utp.Packet{Kind: utp.KindRequest, Token: token}.Append(nil), shake("1", nil)},
		{"request", utp.Packet{Kind: utp.KindRequest, Token: token, Body: []byte("abc")}.Append(nil),
			shake("1", values{"utp.length": "3", "utp.payload": "616263"})},
		{"accept", utp.Packet{Kind: utp.KindAccept, Token: token}.Append(nil), shake("2", nil)},
		{"accept", append(utp.Packet{Kind: utp.KindAccept, Token: token}.Append(nil), 1),
			shake("2", values{"_ws.expert.message": "The packet has 14 bytes, not 15"})},
		{"data", utp.Packet{Kind: utp.KindData, Token: token, Pipeline: 2, Body: []byte("hi")}.Append(nil),
			message("1", values{"utp.pipeline": "2", "utp.payload": "6869"})},
		{"data", utp.Packet{Kind: utp.KindData, Token: token}.Append(nil)[:9],
			message("1", values{"_ws.expert.message": "The packet has 9 bytes, not 10"})},
		{"disconnect", utp.Packet{Kind: utp.KindDisconnect, Token: token}.Append(nil), message("2", nil)},
		{"heartbeat", utp.Packet{Kind: utp.KindHeartbeat, Token: token}.Append(nil), message("3", nil)},
		{"heartbeat", append(cut, 0), message("3", values{"_ws.expert.message": "The packet has 10 bytes, not 9"})},
		{"MTU check", utp.Packet{Kind: utp.KindMTUCheck, Token: token, Body: make([]byte, 4)}.Append(nil),
			message("4", values{"utp.length": "4"})},
		{"MTU ack", utp.Packet{Kind: utp.KindMTUAck, Token: token, Body: []byte{0, 4}}.Append(nil),
			message("5", values{"utp.length": "2", "utp.mtu_size": "1024"})},
	} {
		all = append(all,
			datagram{name: "RELAY with UTP " + c.name, payload: relay(c.packet), want: relayed(c.packet, ", UTP "+c.name, c.want)},
			datagram{name: "UTP " + c.name, payload: c.packet, want: c.want.with(values{"_ws.col.Protocol": "UTP", "_ws.col.Info": c.name})})
	}
	// Without a handshake, nothing says that these bytes are UTP.
	data := utp.Packet{Kind: utp.KindData, Token: unknown, Body: []byte("hi")}.Append(nil)
	return append(all,
		datagram{name: "RELAY with an unknown token", payload: relay(data), want: relayed(data, "", nil)},
		datagram{name: "an unknown token", payload: data, want: plain("50000 → 40000 Len=12")},
		datagram{name: "an unknown token, decode as", port: transportPort, payload: data,
			want: values{"_ws.col.Protocol": "UTP", "_ws.col.Info": "data",
				"utp.kind": "1", "utp.token": unknownText, "utp.pipeline": "0", "utp.payload": "6869"}})
}

func writeFile(t *testing.T, all []datagram) string {
	t.Helper()
	var file bytes.Buffer
	w, err := pcapgo.NewNgWriter(&file, layers.LinkTypeRaw)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range all {
		port := d.port
		if port == 0 {
			port = heuristicPort
		}
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
			SrcIP: netip.MustParseAddr("192.0.2.1").AsSlice(), DstIP: netip.MustParseAddr("192.0.2.2").AsSlice()}
		udp := &layers.UDP{SrcPort: clientPort, DstPort: layers.UDPPort(port)}
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		buf := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(buf, options, ip, udp, gopacket.Payload(d.payload)); err != nil {
			t.Fatal(err)
		}
		frame := buf.Bytes()
		length := len(frame)
		if d.snap > 0 {
			frame = frame[:length-len(d.payload)+d.snap]
		}
		info := gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), 0), CaptureLength: len(frame), Length: length}
		if err := w.WritePacket(info, frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "messages.pcapng")
	if err := os.WriteFile(name, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// tshark returns the fields of each frame of a file. Options go before those of the test.
func tshark(t *testing.T, file string, options ...string) (rows []values) {
	t.Helper()
	path := testkit.Program(t, "tshark", "tshark")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args := append([]string{"-n", "-X", "lua_script:ferry.lua", "-r", file}, options...)
	args = append(args, "-T", "fields", "-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=|")
	for _, name := range fields {
		args = append(args, "-e", name)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	// No configuration of the user, whose plugins may have another copy of the dissector.
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir(), "LC_ALL=C.UTF-8")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("tshark: %v\n%s", err, &errs)
	}
	if strings.Contains(errs.String(), "Lua") || strings.Contains(errs.String(), "ferry.lua") {
		t.Fatalf("tshark reports an error in ferry.lua:\n%s", &errs)
	}
	for line := range strings.Lines(out.String()) {
		row := values{}
		for i, value := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
			if value != "" {
				row[fields[i]] = value
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func compare(t *testing.T, all []datagram, rows []values) {
	t.Helper()
	if len(rows) != len(all) {
		t.Fatalf("tshark shows %d frames of %d", len(rows), len(all))
	}
	for i, d := range all {
		for _, field := range fields {
			if got, want := rows[i][field], d.want[field]; got != want {
				t.Errorf("frame %d, %s: %s is %q, not %q", i+1, d.name, field, got, want)
			}
		}
	}
}

// TestFields: tshark shows the fields of every message as package proto encodes them.
func TestFields(t *testing.T) {
	all := slices.Concat(messages(), errorMessages(), malformed(), truncated(), probes(), transport())
	compare(t, all, tshark(t, writeFile(t, all),
		"-d", fmt.Sprintf("udp.port==%d,ferry", decodeAsPort), "-d", fmt.Sprintf("udp.port==%d,utp", transportPort)))
}

// TestTwoPasses: the second pass over a file, which Wireshark makes too, shows the same.
func TestTwoPasses(t *testing.T) {
	all := slices.Concat(messages(), transport())
	compare(t, all, tshark(t, writeFile(t, all), "-2", "-d", fmt.Sprintf("udp.port==%d,utp", transportPort)))
}

// TestPrefixes: no length and no snap length leads to an error of the script.
func TestPrefixes(t *testing.T) {
	var all []datagram
	var wrong []string // the expert messages of whole datagrams
	for _, d := range slices.Concat(messages(), errorMessages()[:1], malformed(), probes(), transport()) {
		wrong = append(wrong, d.want["_ws.expert.message"])
		payload := d.payload[:min(len(d.payload), 60)]
		for n := 1; n < len(payload); n++ {
			all = append(all,
				datagram{name: fmt.Sprintf("%s, the first %d bytes", d.name, n), port: decodeAsPort, payload: payload[:n]},
				datagram{name: fmt.Sprintf("%s, %d bytes captured", d.name, n), port: decodeAsPort, payload: d.payload, snap: n})
		}
	}
	for i, row := range tshark(t, writeFile(t, all), "-d", fmt.Sprintf("udp.port==%d,ferry", decodeAsPort), "-o", "ferry.transport:Always") {
		for _, field := range []string{"_ws.malformed.expert", "_ws.short", "_ws.lua.error"} {
			// Less than a header is left to the dissectors of other protocols.
			if slices.Contains([]string{"Ferry", "UTP"}, row["_ws.col.Protocol"]) && row[field] != "" {
				t.Errorf("frame %d, %s: %s: %v", i+1, all[i].name, field, row)
			}
		}
		// What was not captured is not missing.
		if message := row["_ws.expert.message"]; all[i].snap > 0 && strings.Contains(message, "bytes, not") && !slices.Contains(wrong, message) {
			t.Errorf("frame %d, %s: %s", i+1, all[i].name, message)
		}
	}
}

// TestPreferences: ports and the transport header follow the preferences.
func TestPreferences(t *testing.T) {
	request := proto.QoSRequest{Sequence: 3, ID: 1, Time: 7}.Append(nil)
	data := utp.Packet{Kind: utp.KindData, Token: 0x1111111111111111, Body: []byte("hi")}.Append(nil)
	shake := utp.Packet{Kind: utp.KindRequest, Token: 1}.Append(nil)
	qos := values{"_ws.col.Protocol": "Ferry", "_ws.col.Info": "QoS request", "ferry.qos": "0x59", "ferry.qos.title_length": "1",
		"ferry.qos.sequence": "3", "ferry.qos.id": "1", "ferry.qos.time": "7"}

	all := []datagram{
		{name: "QoS request at a port of the preference", payload: request, want: qos},
		{name: "QoS request at the former default", port: defaultPort, payload: request, want: plain("50000 → 7777 Len=14")},
		{name: "RELAY with UTP data", payload: relay(data), want: relayed(data, ", UTP data", values{
			"utp.kind": "1", "utp.token": "1111111111111111", "utp.pipeline": "0", "utp.payload": "6869"})},
	}
	compare(t, all, tshark(t, writeFile(t, all), "-o", "ferry.ports:40000", "-o", "ferry.transport:Always"))

	all = []datagram{{name: "RELAY with a handshake", payload: relay(shake), want: relayed(shake, "", nil)}}
	compare(t, all, tshark(t, writeFile(t, all), "-o", "ferry.transport:Never"))
}

func TestNames(t *testing.T) {
	script, err := os.ReadFile("ferry.lua")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("local MAX_RELAY_LEN = %d", proto.RelayOverhead+proto.MaxContent),
		fmt.Sprintf("local SIGNATURE = 0x%X", proto.BindReceived{}.Append(nil)[:2]),
	} {
		if !strings.Contains(string(script), want) {
			t.Errorf("ferry.lua lacks %q", want)
		}
	}
	for n := range 256 {
		if typ := proto.Type(n); typ.FromClient() || typ.FromServer() {
			if want := fmt.Sprintf("[%d] = %q", n, typ); !strings.Contains(string(script), want) {
				t.Errorf("ferry.lua lacks the type %s", want)
			}
		}
		if code := proto.ErrorCode(n); !strings.HasPrefix(code.String(), "code ") {
			if want := fmt.Sprintf("[%d] = %q", n, code); !strings.Contains(string(script), want) {
				t.Errorf("ferry.lua lacks the error code %s", want)
			}
		}
	}
}
