package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

func FuzzCalls(f *testing.F) {
	x := newTestCluster(f)
	issued, err := x.ca.Issue(Request{Role: RoleAPI})
	if err != nil {
		f.Fatal(err)
	}
	state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{issued.cert}}
	good := key{1}.String()
	f.Add(uint8(0), "1000", good, []byte(testHostOf4))
	f.Add(uint8(0), "1000", good, []byte(`{"project":"a","Project":"b"}`))
	f.Add(uint8(1), "1000", good, []byte(`{"project":"game","environment":"live","player":"`+testPlayer+
		`","host":"10111213-1415-1617-1819-1a1b1c1d1e1f"}`))
	f.Add(uint8(2), "1", "", []byte(`{"id":"10111213-1415-1617-1819-1a1b1c1d1e1f"}`))
	f.Add(uint8(3), "10000", "", []byte(`{"host":"10111213-1415-1617-1819-1a1b1c1d1e1f","code":"\u0000"}`))
	f.Add(uint8(4), "1000", "", []byte(`{"keys":["`+good+`"]}`))
	f.Add(uint8(4), "1000", "", []byte(`{"keys":[null,[],{}]}`))
	f.Add(uint8(6), "1000", "", []byte(`{"deadlineMs":-1,"threshold":0}`))
	f.Add(uint8(6), "1000", "", []byte(`{"deadlineMs":9223372036854775807,"threshold":-9223372036854775808}`))
	f.Add(uint8(7), "1000", "", []byte(`{}`))
	f.Add(uint8(8), "1000", "", []byte(`{"id":"10111213-1415-1617-1819-1a1b1c1d1e1f"}`))
	f.Add(uint8(9), "1000", "", []byte(`{"id":null}`))
	f.Add(uint8(11), "1000", good, []byte(testMigration))
	f.Add(uint8(12), "1000", "", []byte(testLeave))
	f.Add(uint8(11), "1000", good, []byte(strings.Replace(testMigration, "AAAA", "AA==", 1)))
	f.Add(uint8(0), "-1", good, []byte(strings.Repeat("[", 4000)))
	f.Add(uint8(0), "1000", good, []byte("\"\xff"))
	f.Add(uint8(0), "1000", good, make([]byte, maxBody+1))
	x.operator.set(nil, operator.DrainState{Draining: true, Deadline: time.Now().Add(time.Hour)})
	f.Fuzz(func(t *testing.T, path uint8, deadline, k string, body []byte) {
		r := httptest.NewRequest(http.MethodPost, x.server.routes[int(path)%len(x.server.routes)].path, strings.NewReader(string(body)))
		r.TLS = state
		r.Header.Set(headerDeadline, deadline)
		r.Header.Set(headerKey, k)
		made := x.server.Stats().Reserved + x.server.Stats().Repeated
		rec := httptest.NewRecorder()
		x.server.ServeHTTP(rec, r)
		switch {
		case rec.Body.Len() > maxAnswer || !json.Valid(rec.Body.Bytes()):
			t.Fatalf("%d bytes: %.300s", rec.Body.Len(), rec.Body)
		case rec.Code != 200 && (rec.Code < 400 || rec.Code >= 500):
			// A machine so busy that a millisecond passes may say so.
			if errorNameOf(t, rec.Body.String()) != "unavailable" {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
		case rec.Code == 200 && strings.Contains(r.URL.Path, "reserve"):
			var a reservationAnswer
			if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil {
				t.Fatal(err)
			}
			if _, err := a.reservation(); err != nil {
				t.Fatal(err)
			}
			if x.server.Stats().Reserved+x.server.Stats().Repeated == made {
				t.Fatal("an answer without a reservation")
			}
		case r.URL.Path == pathMigrate:
			x.relay.Lock()
			defer x.relay.Unlock()
			if n := len(x.relay.Migrations); n > 0 && x.relay.Migrations[n-1].Tenant.Validate() != nil {
				t.Fatalf("a relay is asked for %+v", x.relay.Migrations[n-1])
			}
		case rec.Code == 200 && r.URL.Path == pathDrain:
			x.operator.mu.Lock()
			defer x.operator.mu.Unlock()
			d := x.operator.asked[len(x.operator.asked)-1]
			x.operator.asked = x.operator.asked[:0]
			if d.Deadline < -time.Millisecond || d.Deadline > maxDrainDeadline || d.Threshold < notSet || d.Threshold > maxDrainThreshold {
				t.Fatalf("a relay drains by %+v", d)
			}
		}
	})
}

func FuzzAnswers(f *testing.F) {
	res := alloc.Reservation{Endpoints: newFakeRelay().Endpoints}
	good, err := json.Marshal(answerOf(&res))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"id":"","key":null}`))
	f.Add([]byte(`{"error":"full"}`))
	f.Add([]byte(`{"error":"migration","detail":"","reason":"x","retryAfterMs":1}`))
	f.Add([]byte(`{"error":"host-present","detail":"","host":"10111213-1415-1617-1819-1a1b1c1d1e1f"}`))
	f.Add([]byte(`{"draining":true,"leftMs":9223372036854775807,"threshold":-1,"allocations":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var a reservationAnswer
		if json.Unmarshal(body, &a) == nil {
			if got, err := a.reservation(); err != nil && got.Endpoints != nil {
				t.Error("half a reservation")
			}
		}
		var d drainAnswer
		if json.Unmarshal(body, &d) == nil {
			now := time.Now()
			st, err := d.state(now)
			if err == nil && (st.Threshold < 0 || st.Allocations < 0 || st.Deadline.After(now.Add(maxDrainDeadline))) {
				t.Errorf("a drain of %+v", st)
			}
		}
		l := relayConn{}
		if _, err := l.parseRefusal(503, body); err == nil {
			t.Error("a refusal that is none")
		}
	})
}
