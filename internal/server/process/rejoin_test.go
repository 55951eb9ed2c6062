package process

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/proto"
)

// TestRejoin: a player whose game crashed, or whose page was reloaded, joins its full match again
// by the code. It gets no REJECTED, which is final for a client, and its own place within about
// 3 s. In dev the player names itself, else a backend names it.
func TestRejoin(t *testing.T) {
	t.Parallel()
	const server = "a-backend-of-the-tests"
	c := local()
	c.Tokens = append(c.Tokens, config.Token{Secret: server, Project: "game", Environment: "test", Kind: "server"})
	for mode, join := range map[Mode]func(r running, code, player string) (api.Allocation, error){
		Dev: func(r running, code, player string) (api.Allocation, error) {
			return r.caller("player:"+player).Join(context.Background(), code)
		},
		Serve: func(r running, code, player string) (api.Allocation, error) {
			return r.joinFor(server, code, player)
		},
	} {
		d := dialler{running: start(t, options(c, mode))}
		token := map[Mode]string{Dev: "", Serve: server}[mode]
		for _, kind := range []string{"udp", "dtls", "ws"} {
			t.Run(fmt.Sprint(mode, " ", kind), func(t *testing.T) {
				t.Parallel()
				calls := d.caller(token)
				a, err := calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
				if err != nil {
					t.Fatal(err)
				}
				host := d.join(t, a, "udp")
				code, err := calls.JoinCode(t.Context(), a.AllocationID)
				if err != nil {
					t.Fatal(err)
				}
				reserve := func(player string) api.Allocation {
					a, err := join(d.running, code, player)
					if err != nil {
						t.Fatal(err)
					}
					return a
				}
				first := d.join(t, reserve("ann"), kind)
				if answer := first.connect(nil); answer != proto.TypeAccepted {
					t.Fatalf("the first connection is answered with %v", answer)
				}
				first.tell(host, "before the crash")
				crashed := time.Now()
				if kind == "ws" {
					_ = first.Close()
				}

				again := d.join(t, reserve("ann"), kind)
				if answer := again.connect(host); answer != proto.TypeAccepted {
					t.Fatalf("the next connection is answered with %v after %v", answer, time.Since(crashed))
				}
				t.Logf("in %v after the crash", time.Since(crashed))
				left := proto.Disconnect{From: first.id, To: host.id}.Append(nil)
				if !host.Receives(10*time.Second, func(m []byte) bool { return string(m) == string(left) }) {
					t.Error("the host was not told that the first one has left")
				}
				again.tell(host, "after the crash")
				host.tell(again, "welcome")

				other := d.join(t, reserve("bert"), kind)
				if answer := other.connect(nil); answer != proto.TypeRejected {
					t.Errorf("another player at the full host is answered with %v", answer)
				}
			})
		}
	}
}

func (r running) joinFor(token, code, player string) (api.Allocation, error) {
	body := fmt.Sprintf(`{"joinCode":%q,"player":%q}`, code, player)
	q, err := http.NewRequest(http.MethodPost, r.URL()+"/v1/join", strings.NewReader(body))
	if err != nil {
		return api.Allocation{}, err
	}
	q.Header.Set("Authorization", "Bearer "+token)
	q.Close = true
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		return api.Allocation{}, err
	}
	defer res.Body.Close()
	var out struct {
		Data struct{ Allocation api.Allocation }
	}
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil || res.StatusCode != http.StatusOK {
		return api.Allocation{}, fmt.Errorf("%s: %v", res.Status, err)
	}
	return out.Data.Allocation, nil
}

// connect sends a CONNECT_REQUEST each second, as clients do, until it is answered, and returns
// the type of the answer. A host that is not nil goes on sending PINGs.
func (p *player) connect(host *player) (answer proto.Type) {
	p.t.Helper()
	msg := proto.ConnectRequest{ID: p.id, ConnectionData: p.cred.HostConnectionData}.Append(nil)
	for range 20 {
		if err := p.Send(msg); err != nil {
			p.t.Fatal(err)
		}
		if host != nil {
			_ = host.Send(proto.Ping{ID: host.id, Number: 1}.Append(nil))
		}
		if p.Receives(time.Second, func(m []byte) bool {
			answer, _ = proto.ParseType(m)
			return answer == proto.TypeAccepted || answer == proto.TypeRejected
		}) {
			return answer
		}
	}
	p.t.Fatal("no answer")
	return 0
}
