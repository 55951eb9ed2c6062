package csharp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/clienttest"
)

// sample returns what plays the sample FerryMatch.
func sample(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../Samples~/HostMigration/*.cs")
	if err != nil || len(files) == 0 {
		t.Fatal("no sample", err)
	}
	return append(files, "Game.cs", "Unity.cs")
}

// TestMigration: the host of a match leaves or crashes; one of its two players becomes the host, and the other follows.
// The sample of the package is played, over a netcode that behaves as Unity's transport.
func TestMigration(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, command string
		least, most   time.Duration // from the end of the host until both play
	}{
		// With leave no player waits for the relay's 7 s of silence. On an idle machine it takes less than a second.
		{"leave", "leave", 0, 6 * time.Second},
		{"crash", "quit", 6 * time.Second, clienttest.Within},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := compile(t, sample(t)...)
			url, _, _ := service(t)
			host := clienttest.Start(t, run(url, hostToken, "host"))
			host.Expect("host")
			code := host.Expect("code")
			players := []*clienttest.Program{clienttest.Start(t, run(url, playerToken, code)), clienttest.Start(t, run(url, playerToken, code))}
			for _, p := range players {
				p.Expect("client")
				p.Expect("plays")
			}
			begin := time.Now()
			host.Do(c.command)
			hosts := 0
			for _, p := range players {
				for role := ""; ; {
					line := p.Line()
					if line == "host" || line == "client" {
						role = line
					}
					// A candidate that was not the first follows the one that was.
					if !strings.HasPrefix(line, "failed ") && line != "host" && line != "client" && line != "plays" {
						t.Fatalf("it prints %q", line)
					}
					if role == "host" {
						hosts++
						break
					}
					if line == "plays" {
						break
					}
				}
			}
			took := time.Since(begin)
			t.Logf("both play after %v", took.Round(time.Millisecond))
			if hosts != 1 {
				t.Errorf("%d hosts", hosts)
			}
			if took < c.least || took > c.most {
				t.Errorf("after %v, want %v to %v", took, c.least, c.most)
			}
		})
	}
}

// TestMigrationOver: a match without another player is over for the player that asks too late, with a reason.
func TestMigrationOver(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	code := clienttest.Host(t, caller, 4, nil).Code
	g := connected(t, url, code)
	g.Do("migrate BCDFGH")
	if line := g.Expect("migrate"); line != "over 404 15009" {
		t.Errorf("another match: %s", line)
	}
	g.Do("migrate " + code)
	if line := g.Expect("migrate"); line != "timeout" {
		t.Errorf("while the host is there: %s", line)
	}
}

// TestOver: the game is told when its match is over, and why.
func TestOver(t *testing.T) {
	t.Parallel()
	run := compile(t, sample(t)...)
	url, _, _ := service(t)
	target, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/migrate" {
			forward.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"code":15009,"detail":"there is no such match"}`)
	}))
	defer front.Close()
	host := clienttest.Start(t, run(url, hostToken, "host"))
	host.Expect("host")
	player := clienttest.Start(t, run(front.URL, playerToken, host.Expect("code")))
	player.Expect("client")
	player.Expect("plays")
	host.Do("leave")
	player.Expect("over: there is no such match")
}
