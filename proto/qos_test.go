package proto_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/proto"
)

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestQoS(t *testing.T) {
	request := unhex(t, "59000c516f53207265717565737403efbe0068e5cf8b010000")
	response := unhex(t, "950003efbe0068e5cf8b010000")
	m, err := proto.ParseQoSRequest(request)
	if err != nil || string(m.Title) != "QoS request" || m.Sequence != 3 || m.ID != 0xBEEF || m.Time != 1700000000000 {
		t.Fatalf("%+v, %v", m, err)
	}
	if got := m.Append(nil); !bytes.Equal(got, request) {
		t.Errorf("request\n%x, want\n%x", got, request)
	}
	if got := m.Response().Append(nil); !bytes.Equal(got, response) {
		t.Errorf("response\n%x, want\n%x", got, response)
	}
	r, err := proto.ParseQoSResponse(response)
	if err != nil || r != m.Response() {
		t.Errorf("%+v, %v", r, err)
	}
	for i := range request {
		if _, err := proto.ParseQoSRequest(request[:i]); err == nil {
			t.Errorf("a request of %d bytes is accepted", i)
		}
	}
	for i := range response {
		if _, err := proto.ParseQoSResponse(response[:i]); err == nil {
			t.Errorf("a response of %d bytes is accepted", i)
		}
	}
}

func TestQoSRejects(t *testing.T) {
	good := proto.QoSRequest{Title: []byte("x")}.Append(nil)
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		want   error
	}{
		{"another first byte", func(b []byte) []byte { b[0]++; return b }, proto.ErrSignature},
		{"another version", func(b []byte) []byte { b[1] = 0x10; return b }, proto.ErrVersion},
		{"no length", func(b []byte) []byte { b[2] = 0; return b }, proto.ErrLength},
		{"a byte more", func(b []byte) []byte { return append(b, 0) }, proto.ErrLength},
		{"nothing", func([]byte) []byte { return nil }, proto.ErrShort},
	} {
		if _, err := proto.ParseQoSRequest(c.change(bytes.Clone(good))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func FuzzQoS(f *testing.F) {
	f.Add(proto.QoSRequest{Title: []byte("QoS request"), Sequence: 1, ID: 2, Time: 3}.Append(nil))
	f.Add([]byte{0x95, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Fuzz(func(t *testing.T, pkt []byte) {
		if m, err := proto.ParseQoSRequest(pkt); err == nil {
			answer := m.Response().Append(nil)
			if len(answer) >= len(pkt) || len(answer) != 13 {
				t.Errorf("%d bytes in answer to %d", len(answer), len(pkt))
			}
			if again, err := proto.ParseQoSRequest(m.Append(nil)); err != nil || !bytes.Equal(again.Title, m.Title) || again.Time != m.Time {
				t.Errorf("%+v becomes %+v, %v", m, again, err)
			}
		}
		if m, err := proto.ParseQoSResponse(pkt); err == nil {
			if again, err := proto.ParseQoSResponse(m.Append(nil)); err != nil || again != m {
				t.Errorf("%+v becomes %+v, %v", m, again, err)
			}
		}
	})
}
