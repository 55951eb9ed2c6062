package clienttest

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/proto"
)

// Vector is a golden packet and the fields that a client decodes from it. Bytes are in hexadecimal; a field
// that the message does not have is as its comment says.
type Vector struct {
	Name   string
	Packet string
	Key    string // for the MAC of a BIND
	Type   byte
	ID     string // or From; ""
	To     string // ""
	Number string // of a BIND, the nonce; "0"
	Code   string // "0"
	Data   string // ""
	Again  string // what a client encodes from these fields
}

// Vectors returns the vectors of a file, such as docs/vectors.json, without those of QoS, and the packets of
// those by their name.
func Vectors(t testing.TB, file string) (all []Vector, qos map[string]string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Inputs  map[string]struct{ Hex, Base64 string }
		Vectors []struct {
			ID, Hex string
			Inputs  map[string]any
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	input := func(v any) string {
		in := golden.Inputs[fmt.Sprint(v)]
		if in.Base64 == "" {
			return in.Hex
		}
		data, err := base64.StdEncoding.DecodeString(in.Base64)
		if err != nil {
			t.Fatal(err)
		}
		return hex.EncodeToString(data)
	}
	qos = map[string]string{}
	for _, g := range golden.Vectors {
		if strings.HasPrefix(g.ID, "qos-") {
			qos[g.ID] = g.Hex
			continue
		}
		v := Vector{Name: g.ID, Packet: g.Hex, Key: input("K1"), Number: "0", Code: "0", Again: g.Hex}
		kind, err := hex.DecodeString(g.Hex[6:8])
		if err != nil {
			t.Fatal(err)
		}
		v.Type = kind[0]
		for name, value := range g.Inputs {
			switch name {
			case "key":
				v.Key = input(value)
			case "from", "allocation_id":
				v.ID = input(value)
			case "to":
				v.To = input(value)
			case "nonce", "number":
				v.Number = fmt.Sprint(value)
			case "code":
				v.Code = fmt.Sprint(value)
			case "connection_data", "to_connection_data":
				v.Data = input(value)
			case "content":
				v.Data = fmt.Sprint(value)
			}
		}
		switch g.ID {
		case "bind-bad-mac": // the same message with the right MAC
			good := golden.Vectors[0]
			v.Data, v.Again = input(good.Inputs["connection_data"]), good.Hex
		case "relay-utp2-connreq": // content of the layer above
			v.Data = g.Hex[2*proto.RelayOverhead:]
		}
		all = append(all, v)
	}
	if len(all) == 0 {
		t.Fatal("no vectors")
	}
	return all, qos
}
