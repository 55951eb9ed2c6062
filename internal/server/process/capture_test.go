package process

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func packets(t *testing.T, file string) (n int) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader([]byte(file)), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatalf("%v in %q", err, file)
	}
	for {
		if _, _, err := r.ReadPacketData(); err != nil {
			return n
		}
		n++
	}
}

// TestCaptureFleet: an API process captures at the relay of a host, by its id, its join code or
// the relay's name; a relay that does not allow it says so.
func TestCaptureFleet(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	o := k.relayOptions(1, "eu")
	o.Config.Capture = true
	eu, us, a := start(t, o), k.relay(2, "us"), k.api()
	testkit.Eventually(t, "both relays", func() bool { return len(a.frontEnd.fleet.Nodes()) == 2 })
	host, code := hostIn(t, a, "eu")
	other, _ := hostIn(t, a, "us")
	for _, c := range []struct {
		path   string
		status int
		want   string
	}{
		{"/allocations/" + host.AllocationID + "/capture?seconds=1", 200, ""},
		{"/allocations/" + code + "/capture?seconds=1", 200, ""},
		{"/nodes/" + o.Identity.Relay.String() + "/allocations/" + code + "/capture?seconds=1", 200, ""},
		{"/allocations/" + other.AllocationID + "/capture?seconds=1", http.StatusConflict, "captures are off"},
		{"/allocations/" + host.AllocationID + "/capture?seconds=9", 400, "up to 8"},
		{"/allocations/" + host.AllocationID + "/capture?seconds=0", 400, "from 1"},
		{"/allocations/NOCODE/capture?seconds=1", 404, "NOCODE"},
	} {
		status, body := a.operate(t, "POST", c.path)
		if status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %.200s", c.path, status, body)
		}
		if status == 200 && packets(t, body) != 0 {
			t.Errorf("%s: a match without players has %d packets", c.path, packets(t, body))
		}
	}
	if status, body := us.operate(t, "POST", "/allocations/"+other.AllocationID+"/capture?seconds=1"); status != http.StatusConflict {
		t.Errorf("at the relay: %d %s", status, body)
	}

	// A GET is not audited, so none captures, whatever the node.
	for _, r := range []running{a, eu} {
		path := "/nodes/" + o.Identity.Relay.String() + "/fleet-capture/" + host.AllocationID + "?seconds=1"
		if status, body := r.operate(t, "GET", path); status != 404 {
			t.Errorf("GET %s: %d %.200s", path, status, body)
		}
	}

	testkit.Within(t, time.Minute, "one of two captures at once is refused", func() bool {
		statuses := make(chan int, 2)
		for range 2 {
			go func() {
				status, _ := eu.operate(t, "POST", "/allocations/"+host.AllocationID+"/capture?seconds=1")
				statuses <- status
			}()
		}
		return <-statuses+<-statuses == http.StatusConflict+200
	})
}
