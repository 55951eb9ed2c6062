//go:build browser

package blackbox

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

type consoleFleet struct {
	t     *testing.T
	dir   string
	store *redistest.Server
}

func startConsoleFleet(t *testing.T) *consoleFleet {
	f := &consoleFleet{t: t, dir: t.TempDir(), store: redistest.Start(t)}
	f.run("ctl", "cluster-ca", "ca")
	f.run("ctl", "cluster-ca", "ca", "api")
	if err := os.WriteFile(filepath.Join(f.dir, "api.yaml"), fmt.Appendf(nil,
		"tokens:\n  - {secret: %s, project: game, environment: test, kind: server}\n", token), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *consoleFleet) run(args ...string) {
	f.t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = f.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

func (f *consoleFleet) start(name string, args ...string) (admin string, cmd *exec.Cmd) {
	f.t.Helper()
	admin = "127.0.0.1:" + testkit.FreePort(f.t)
	var log text
	cmd = exec.Command(binary, append(args, "--store", f.store.URL, "--admin", admin, "--cluster-ca", "ca/ca.pem",
		"--cluster-cert", "ca/"+name+".pem", "--cluster-key", "ca/"+name+"-key.pem")...)
	cmd.Dir, cmd.Stderr = f.dir, &log
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if !testkit.Poll(testkit.WaitLimit, func() bool {
		r, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	}) {
		f.t.Fatalf("%s does not get ready:\n%s", name, log.String())
	}
	return admin, cmd
}

func (f *consoleFleet) relay(name, region string) *exec.Cmd {
	f.t.Helper()
	f.run("ctl", "cluster-ca", "ca", "relay", "--state-dir", name, "--name", name)
	udp := "127.0.0.1:" + testkit.FreePort(f.t)
	_, cmd := f.start(name, "relay", "--udp", udp, "--http", udp, "--cluster", "127.0.0.1:"+testkit.FreePort(f.t), "--state-dir", name,
		"--region", region, "--advertise", "127.0.0.1")
	return cmd
}

// TestConsoleFleet: an API process opens on its fleet, which shows what is wrong when a relay dies.
func TestConsoleFleet(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "chromium", "chromium")
	f := startConsoleFleet(t)
	f.relay("relay1", "eu")
	lost := f.relay("relay2", "us")
	api := "127.0.0.1:" + testkit.FreePort(t)
	admin, _ := f.start("api", "api", "--config", "api.yaml", "--http", api)
	var load sync.WaitGroup
	load.Go(func() { // It ends when no relay is ready, as on a machine that is busy for seconds.
		for t.Context().Err() == nil {
			_ = exec.CommandContext(t.Context(), binary, "bench", "--api", "http://"+api, "--token", token, "--matches", "10", "--rate", "400",
				"--duration", "10m").Run()
		}
	})
	t.Cleanup(load.Wait)

	p := consoleTab{startChromium(t).open("http://"+admin+"/", "document.querySelector('h1') !== null")}
	p.title("Fleet")
	p.shows("Relays ready\n2 of 2")
	p.shows("1 of 1 ready")
	p.shows("Matches\n10\n")
	p.shows("kbit/s")
	p.shows("No canary reports here.")
	for _, region := range []string{"eu", "us"} {
		canary := exec.Command(binary, "ping", "http://"+api, "--token", token, "--region", region, "--every", "2s",
			"--transport", "udp,dtls", "--listen", "127.0.0.1:0", "--report", "http://"+admin, "--name", "edge-"+region)
		if err := canary.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = canary.Process.Kill(); _ = canary.Wait() })
	}
	p.shows("edge-eu\teu\tdtls\t")
	p.shows("edge-us\tus\tudp\t")
	p.readable("fleet")
	p.screen("fleet")
	p.size(400, 900, "dark")
	p.screen("fleet-narrow-dark")
	p.size(1280, 900, "light")
	p.goTo("fleet?over=day")
	p.shows("What came and went")

	if err := lost.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.goTo("fleet")
	p.shows("dead: it does not announce itself any more")
	p.shows("region us")
	p.shows("no relay there is ready")
	p.shows("in us can be played from there: allocate")
	p.readable("fleet with a dead relay")
	p.screen("fleet-dead")
	p.goTo("fleet?q=eu")
	p.press("Drain")
	p.shows("After 1 hour it stops in any case")
	p.press("Cancel")
	p.goTo("fleet")
	var drains int
	err := p.evaluate("[...document.querySelectorAll('button')].filter(b => b.innerText === 'Drain').length", &drains)
	if err != nil || drains != 1 {
		t.Errorf("%d relays can be drained, want the live one: %v", drains, err)
	}
	p.do(nil, "(() => document.querySelector('.relays a').click())")
	p.shows("Drops by reason")
	p.readable("relay")
	p.screen("relay")
}
