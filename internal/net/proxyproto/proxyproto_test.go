package proxyproto

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

func headerV2(command, family byte, body string) string {
	return proxyV2Start + string([]byte{command, family, byte(len(body) >> 8), byte(len(body))}) + body
}

// waitLimit is the time limit of waits that end at once unless a test fails.
const waitLimit = 15 * time.Second

const (
	v4Body = "\xc0\x00\x02\x01\xc6\x33\x64\x01\x12\x34\x01\xbb"
	v6Body = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x12\x34\x01\xbb"
)

// proxyHeaders are complete headers, each with the expected address, "-" for that
// of the connection, or "" for an error.
var proxyHeaders = []struct{ header, want string }{
	{"PROXY TCP4 192.0.2.1 198.51.100.1 4660 443\r\n", "192.0.2.1:4660"},
	{"PROXY TCP6 2001:db8::1 2001:db8::2 4660 443\r\n", "[2001:db8::1]:4660"},
	{"PROXY UNKNOWN\r\n", "-"},
	{"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "-"},
	{headerV2(0x21, 0x11, v4Body), "192.0.2.1:4660"},
	{headerV2(0x21, 0x21, v6Body), "[2001:db8::1]:4660"},
	{headerV2(0x21, 0x11, v4Body+"\x04\x00\x01\x00"), "192.0.2.1:4660"}, // with an extension
	{headerV2(0x20, 0x00, ""), "-"},
	{headerV2(0x20, 0x11, "junk"), "-"},
	{headerV2(0x21, 0x00, ""), "-"},
	{headerV2(0x21, 0x12, v4Body), "-"},
	{headerV2(0x21, 0x31, strings.Repeat("x", 216)), "-"},

	{"GET / HTTP/1.1\r\n", ""},
	{"PROXY\r\n", ""},
	{"PROXY \r\n", ""},
	{"PROXY TCP4 192.0.2.1 198.51.100.1 4660\r\n", ""},
	{"PROXY TCP4 192.0.2.1 198.51.100.1 4660 443 1\r\n", ""},
	{"PROXY TCP4 192.0.2.1 198.51.100.1 4660 65536\r\n", ""},
	{"PROXY TCP4 192.0.2.1  198.51.100.1 4660 443\r\n", ""},
	{"PROXY TCP4 2001:db8::1 198.51.100.1 4660 443\r\n", ""},
	{"PROXY TCP6 192.0.2.1 2001:db8::2 4660 443\r\n", ""},
	{"PROXY TCP6 fe80::1%eth0 2001:db8::2 4660 443\r\n", ""},
	{"PROXY UDP4 192.0.2.1 198.51.100.1 4660 443\r\n", ""},
	{"PROXY UNKNOWN " + strings.Repeat("x", 92) + "\r\n", ""}, // 108 bytes
	{headerV2(0x22, 0x11, v4Body), ""},
	{headerV2(0x11, 0x11, v4Body), ""},
	{headerV2(0x21, 0x13, v4Body), ""},
	{headerV2(0x21, 0x41, v4Body), ""},
	{headerV2(0x21, 0x11, v4Body[:11]), ""},
	{headerV2(0x21, 0x21, v6Body[:35]), ""},
	{headerV2(0x21, 0x11, strings.Repeat("x", proxyMax)), ""},
}

func TestProxyHeader(t *testing.T) {
	t.Parallel()
	for _, test := range proxyHeaders {
		client, n, err := parseProxyHeader([]byte(test.header + "more"))
		if test.want == "" {
			if err != ErrHeader {
				t.Errorf("%q: %v, %d, %v", test.header, client, n, err)
			}
			continue
		}
		if err != nil || n != len(test.header) || client.IsValid() != (test.want != "-") || client.IsValid() && client.String() != test.want {
			t.Errorf("%q: %v, %d, %v, want %s", test.header, client, n, err, test.want)
		}
		for cut := range test.header {
			if _, _, err := parseProxyHeader([]byte(test.header[:cut])); err != errPartialHeader {
				t.Errorf("%q: %v, want more", test.header[:cut], err)
			}
		}
	}
}

func FuzzProxyHeader(f *testing.F) {
	for _, test := range proxyHeaders {
		if len(test.header) < 300 {
			f.Add([]byte(test.header))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		client, n, err := parseProxyHeader(b)
		switch {
		case err == nil:
			if n <= 0 || n > len(b) || n > proxyMax || client.Addr().Is4In6() || client.Addr().Zone() != "" {
				t.Fatalf("%x: %v, %d", b, client, n)
			}
			// The result must not depend on the bytes after the header.
			if client2, n2, err2 := parseProxyHeader(b[:n]); client2 != client || n2 != n || err2 != nil {
				t.Fatalf("%x alone: %v, %d, %v", b[:n], client2, n2, err2)
			}
			if _, _, err2 := parseProxyHeader(b[:n-1]); err2 != errPartialHeader {
				t.Fatalf("%x: %v, want more", b[:n-1], err2)
			}
		case err == errPartialHeader:
			if len(b) >= proxyMax {
				t.Fatalf("%d bytes are not enough", len(b))
			}
		case err != ErrHeader:
			t.Fatal(err)
		}
	})
}

func dialProxied(t *testing.T, cfg Config, writes ...string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err = Listen(l, cfg).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for _, w := range writes {
			io.WriteString(client, w)
			time.Sleep(time.Millisecond)
		}
	}()
	return client, server
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func TestListen(t *testing.T) {
	t.Parallel()
	header, rest := proxyHeaders[0].header, strings.Repeat("rest", 1000)
	for _, writes := range [][]string{{header + rest}, {header[:3], header[3:], rest}, {header, rest}, {headerV2(0x21, 0x11, v4Body) + rest}} {
		_, server := dialProxied(t, Config{Proxies: loopback}, writes...)
		server.SetReadDeadline(time.Now().Add(waitLimit))
		got := make([]byte, len(rest))
		if _, err := io.ReadFull(server, got); err != nil || string(got) != rest {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if got := server.RemoteAddr().String(); got != "192.0.2.1:4660" {
			t.Errorf("the client is %s", got)
		}
	}
}

// TestProxyAddress: RemoteAddr waits for the header, and returns the proxy's
// address if the header has none.
func TestProxyAddress(t *testing.T) {
	t.Parallel()
	_, server := dialProxied(t, Config{Proxies: loopback}, "", "", proxyHeaders[1].header)
	if got := server.RemoteAddr().String(); got != "[2001:db8::1]:4660" {
		t.Errorf("the client is %s", got)
	}
	client, server := dialProxied(t, Config{Proxies: loopback}, "PROXY UNKNOWN\r\n")
	if got := server.RemoteAddr().String(); got != client.LocalAddr().String() {
		t.Errorf("the client is %s", got)
	}
}

// TestProxyUntrusted: a header from an address that is not a proxy's is data.
func TestProxyUntrusted(t *testing.T) {
	t.Parallel()
	header := proxyHeaders[0].header
	client, server := dialProxied(t, Config{Proxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, header)
	got := make([]byte, len(header))
	if _, err := io.ReadFull(server, got); err != nil || string(got) != header || server.RemoteAddr().String() != client.LocalAddr().String() {
		t.Errorf("%q, %v, from %v", got, err, server.RemoteAddr())
	}
}

// TestProxyRefused: a proxy's connection without a valid header is closed and
// counted, at the latest after Timeout.
func TestProxyRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		write   string
		timeout time.Duration
		want    error
	}{
		{"GET / HTTP/1.1\r\n\r\n", waitLimit, ErrHeader},
		{"PROXY TC", 100 * time.Millisecond, os.ErrDeadlineExceeded},
		{"", 100 * time.Millisecond, os.ErrDeadlineExceeded},
	} {
		var refused []netip.Addr
		client, server := dialProxied(t, Config{
			Proxies: loopback, Timeout: test.timeout,
			OnRefuse: func(a netip.Addr, err error) { refused = append(refused, a) },
		}, test.write)
		for range 2 {
			if n, err := server.Read(make([]byte, 10)); n != 0 || !errors.Is(err, test.want) {
				t.Errorf("%q: read %d, %v", test.write, n, err)
			}
		}
		if server.RemoteAddr().String() != client.LocalAddr().String() || len(refused) != 1 || refused[0].String() != "127.0.0.1" {
			t.Errorf("%q: from %v, refused %v", test.write, server.RemoteAddr(), refused)
		}
		client.SetReadDeadline(time.Now().Add(waitLimit))
		if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: the connection is open: %v", test.write, err)
		}
	}
}

func TestProxyDeadline(t *testing.T) {
	t.Parallel()
	_, server := dialProxied(t, Config{Proxies: loopback}, proxyHeaders[0].header)
	server.SetDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	_, server = dialProxied(t, Config{Proxies: loopback})
	server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("before the header: %v", err)
	}
}

// TestOnClient: the client's address is reported with the connection below, and
// not if the header has none.
func TestOnClient(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{"PROXY TCP4 192.0.2.1 198.51.100.1 4660 443\r\n": "192.0.2.1", "PROXY UNKNOWN\r\n": ""} {
		got := ""
		_, server := dialProxied(t, Config{Proxies: loopback, OnClient: func(conn net.Conn, client netip.Addr) {
			if _, ok := conn.(*net.TCPConn); !ok {
				t.Errorf("reported with a %T", conn)
			}
			got = client.String()
		}}, header)
		if server.RemoteAddr(); got != want {
			t.Errorf("%q: client %q, want %q", header, got, want)
		}
	}
}
