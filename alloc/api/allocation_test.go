package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// canary is a key whose base64 and hexadecimal forms are easy to look for.
var canary = bytes.Repeat([]byte{0xC5}, keyLen)

func hostAllocation() Allocation {
	return Allocation{
		AllocationID:      "6f1de3a2-5f34-4a3e-9d4c-0a5f3a1b2c3d",
		AllocationIDBytes: bytes.Repeat([]byte{7}, idLen),
		ConnectionData:    bytes.Repeat([]byte{8}, maxConnectionData),
		Key:               canary,
		Region:            "local",
		RelayServer:       RelayServer{IPv4: "192.0.2.1", Port: 7777},
		ServerEndpoints: []ServerEndpoint{
			{ConnectionType: "udp", Network: "udp", Host: "192.0.2.1", Port: 7777},
			{ConnectionType: "dtls", Network: "udp", Secure: true, Host: "192.0.2.1", Port: 7777},
		},
	}
}

func joinerAllocation() Allocation {
	a := hostAllocation()
	a.HostConnectionData = bytes.Repeat([]byte{9}, maxConnectionData)
	return a
}

func TestAllocationJSON(t *testing.T) {
	const want = `{"allocationId":"id","allocationIdBytes":"AQI=","connectionData":"Aw==",` +
		`"hostConnectionData":"BA==","key":"BQ==","region":"r","relayServer":{"ipV4":"192.0.2.1","port":7},` +
		`"serverEndpoints":[{"connectionType":"wss","network":"tcp","reliable":true,"secure":true,"host":"h","port":443}]}`
	a := Allocation{
		AllocationID: "id", AllocationIDBytes: []byte{1, 2}, ConnectionData: []byte{3},
		HostConnectionData: []byte{4}, Key: []byte{5}, Region: "r",
		RelayServer: RelayServer{IPv4: "192.0.2.1", Port: 7},
		ServerEndpoints: []ServerEndpoint{{
			ConnectionType: "wss", Network: "tcp", Reliable: true, Secure: true, Host: "h", Port: 443,
		}},
	}
	got, err := json.Marshal(a)
	if err != nil || string(got) != want {
		t.Fatalf("Marshal = %s, %v\nwant      %s", got, err, want)
	}
	var back Allocation
	if err := json.Unmarshal(got, &back); err != nil || !bytes.Equal(back.Key, a.Key) {
		t.Fatalf("Unmarshal: %v, %d bytes of key", err, len(back.Key))
	}
}

func TestAllocationEndpoint(t *testing.T) {
	a := hostAllocation()
	if e, ok := a.Endpoint("dtls"); !ok || !e.Secure {
		t.Errorf("Endpoint(dtls) = %+v, %v", e, ok)
	}
	if e, ok := a.Endpoint("wss"); ok {
		t.Errorf("Endpoint(wss) = %+v, want none", e)
	}
}

func TestAllocationValidate(t *testing.T) {
	if err := joinerAllocation().Validate(); err != nil {
		t.Fatalf("a whole allocation: %v", err)
	}
	tests := map[string]func(*Allocation){
		"no id":                    func(a *Allocation) { a.AllocationID = "" },
		"short id bytes":           func(a *Allocation) { a.AllocationIDBytes = a.AllocationIDBytes[1:] },
		"short key":                func(a *Allocation) { a.Key = a.Key[1:] },
		"no connection data":       func(a *Allocation) { a.ConnectionData = nil },
		"long connection data":     func(a *Allocation) { a.ConnectionData = make([]byte, 256) },
		"long host data":           func(a *Allocation) { a.HostConnectionData = make([]byte, 256) },
		"no endpoint":              func(a *Allocation) { a.ServerEndpoints = nil },
		"endpoint without a host":  func(a *Allocation) { a.ServerEndpoints[0].Host = "" },
		"endpoint without a type":  func(a *Allocation) { a.ServerEndpoints[1].ConnectionType = "" },
		"endpoint without a port":  func(a *Allocation) { a.ServerEndpoints[0].Port = 0 },
		"endpoint beyond all port": func(a *Allocation) { a.ServerEndpoints[0].Port = 65536 },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			a := joinerAllocation()
			spoil(&a)
			if err := a.Validate(); !errors.Is(err, ErrAnswer) {
				t.Errorf("Validate = %v, want ErrAnswer", err)
			}
		})
	}
}

func TestNothingSecretIsPrinted(t *testing.T) {
	const token = "canary-token-0123456789"
	a := hostAllocation()
	c := Client{BaseURL: "https://user:canary-password@relay.example.org", Token: token}
	var out bytes.Buffer
	for _, v := range []any{a, &a, a.Key, c, &c, []Allocation{a}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	for _, l := range []*slog.Logger{
		slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil)),
	} {
		l.Info("values", "allocation", a, "key", a.Key, "client", c)
		l.Info("pointers", "allocation", &a, "client", &c)
	}
	key, err := json.Marshal(a.Key)
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{token, "canary-password", strings.Trim(string(key), `"`)[:40], "c5c5c5", "C5C5C5", "197 197 197", "0xc5, 0xc5",
		"xc5xc5", `\xc5\xc5`}
	for _, s := range secrets {
		if strings.Contains(out.String(), s) {
			t.Errorf("printed %q", s)
		}
	}
}
