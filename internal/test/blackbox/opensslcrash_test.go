package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
)

// TestCrashOpenSSL: openssl, which never handshakes again, plays on in its
// session after kill -9, twice.
func TestCrashOpenSSL(t *testing.T) {
	t.Parallel()
	p, udp := newPlace(t), testkit.FreeAddr(t, "udp")
	f := p.serve("--udp", udp, "--bind-timeout", "1h")
	a, _ := f.allocate(4)
	cred := a.credentials(t)
	s := wiretest.StartOpenSSL(t, a.endpoint(t, "dtls"), a.AllocationID, a.Key, "PSK")
	testkit.Eventually(t, "a session", func() bool { return f.event("established") == 1 })
	nonce, number := uint16(0), uint16(0)
	// tell sends a message until an answer has come that was not there before.
	// openssl sends what it reads at once as one record, so there are pauses.
	tell := func(what string, message func() (msg, answer []byte)) {
		t.Helper()
		last, before := time.Now(), s.Out.String()
		var answer []byte
		testkit.Eventually(t, what, func() bool {
			if text := string(answer); text != "" && strings.Count(s.Out.String(), text) > strings.Count(before, text) {
				return true
			}
			if time.Since(last) > 100*time.Millisecond {
				last = time.Now()
				var msg []byte
				msg, answer = message()
				if _, err := s.In.Write(msg); err != nil {
					t.Fatal(err)
				}
			}
			return false
		})
	}
	bind := func() ([]byte, []byte) {
		nonce++
		return enginetest.SignedBind(cred, nonce), proto.BindReceived{}.Append(nil)
	}
	ping := func() ([]byte, []byte) {
		number++
		b := proto.Ping{ID: cred.ID, Number: number}.Append(nil)
		return b, b
	}
	tell("BIND_RECEIVED", bind)
	tell("the echo of a PING", ping)
	for crash := range 2 {
		f.Crash()
		f = p.serve("--udp", udp)
		tell(fmt.Sprint("ERROR 3 after crash ", crash), func() ([]byte, []byte) {
			b, _ := ping()
			return b, proto.Error{ID: cred.ID, Code: proto.ErrorMismatch}.Append(nil)
		})
		tell("BIND_RECEIVED", bind)
		tell("the echo of a PING", ping)
		if established, resumed := f.event("established"), f.event("resumed"); established != 0 || resumed != 1 {
			t.Errorf("after crash %d: %v handshakes and %v sessions that went on, want 0 and 1", crash, established, resumed)
		}
	}
}
