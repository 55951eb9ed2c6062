//go:build browser

package blackbox

import (
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/oidctest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

var consoleScreens = flag.Bool("console.screens", false, "write a picture of each page of the console to docs/console")

type consoleTab struct{ tab }

func (p consoleTab) shows(text string) {
	p.t.Helper()
	var last string
	if !testkit.Poll(testkit.WaitLimit, func() bool {
		return p.evaluate("document.body.innerText", &last) == nil && strings.Contains(last, text)
	}) {
		p.t.Fatalf("the page does not show %q, but\n%s", text, last)
	}
}

// press waits for a button or link with that text, the last one on the page, and presses it.
func (p consoleTab) press(text string) {
	p.t.Helper()
	testkit.Eventually(p.t, "there is "+text, func() bool {
		var pressed bool
		err := p.evaluate(fmt.Sprintf(`(() => {
			const b = [...document.querySelectorAll("button, a")].filter(e => e.innerText.trim() === %q && !e.disabled).pop()
			b?.click()
			return b !== undefined
		})()`, text), &pressed)
		return err == nil && pressed
	})
}

func (p consoleTab) enter(id, text string) {
	p.t.Helper()
	testkit.Eventually(p.t, "there is the field "+id, func() bool {
		var there bool
		err := p.evaluate(fmt.Sprintf(`(() => {
			const f = document.getElementById(%q)
			if (!f) return false
			f.value = %q
			f.dispatchEvent(new Event("input", {bubbles: true}))
			return true
		})()`, id, text), &there)
		return err == nil && there
	})
}

func (p consoleTab) goTo(page string) {
	p.t.Helper()
	if err := p.evaluate(fmt.Sprintf("location.hash = '#/%s'", page), nil); err != nil {
		p.t.Fatal(err)
	}
}

func (p consoleTab) size(width, height int, theme string) {
	p.t.Helper()
	var none struct{}
	p.call(p.session, "Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
	}, &none)
	if err := p.evaluate(fmt.Sprintf("document.documentElement.dataset.theme = %q", theme), nil); err != nil {
		p.t.Fatal(err)
	}
}

// screen writes a picture of the page, if pictures are wanted.
func (p consoleTab) screen(name string) {
	p.t.Helper()
	if !*consoleScreens {
		return
	}
	var picture struct{ Data string }
	p.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png"}, &picture)
	b, err := base64.StdEncoding.DecodeString(picture.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join("../../../docs/console", name+".png"), b, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// unreadable is a function that returns the texts with a contrast below WCAG AA, and what is
// wider than the window.
const unreadable = `(() => {
	const channel = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4 }
	const rgb = s => s.match(/[\d.]+/g).map(Number)
	const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b)
	const back = e => {
		for (; e; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor)
			if (c.length < 4 || c[3] > 0) return c
		}
		return [255, 255, 255]
	}
	const bad = []
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
	while (texts.nextNode()) {
		const e = texts.currentNode.parentElement
		if (!texts.currentNode.data.trim() || !e.checkVisibility() || e.closest("[disabled], script, noscript")) continue
		const a = light(rgb(getComputedStyle(e).color)), b = light(back(e))
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
		if (ratio < 4.5) bad.push(texts.currentNode.data + ": " + ratio.toFixed(2))
	}
	const wide = document.documentElement.scrollWidth - innerWidth
	if (wide > 0) bad.push("the page is " + wide + " px wider than the window")
	return bad
})()`

// title waits until the title of the document names the place and the page.
func (p consoleTab) title(page string) {
	p.t.Helper()
	host, err := os.Hostname()
	if err != nil {
		p.t.Fatal(err)
	}
	var title string
	if !testkit.Poll(testkit.WaitLimit, func() bool {
		return p.evaluate("document.title", &title) == nil && strings.Contains(title, host+" ") && strings.Contains(title, page+" – Ferry")
	}) {
		p.t.Errorf("the title is %q", title)
	}
}

func (p consoleTab) reload() {
	p.t.Helper()
	var none struct{}
	p.call(p.session, "Page.reload", map[string]any{}, &none)
}

// keepsFocus sorts the matches so that rows move, and verifies that the focus stays at its link
// while the list is drawn again.
func (p consoleTab) keepsFocus() {
	p.t.Helper()
	p.press("Heard")
	p.shows("Heard ↓")
	var lost string
	err := p.evaluate(`(async () => {
		const table = document.querySelector("[aria-label=Matches]")
		const link = table.querySelector("td a")
		link.focus()
		let moved = 0
		const watch = new MutationObserver(() => moved++)
		watch.observe(table, {childList: true, subtree: true, characterData: true})
		for (let i = 0; i < 600 && moved < 3; i++) await new Promise(f => setTimeout(f, 100))
		watch.disconnect()
		return !moved ? "the list is not drawn again" : document.activeElement === link || !link.isConnected && document.activeElement === table ? "" : "the focus is at " + document.activeElement.outerHTML.slice(0, 200)
	})()`, &lost)
	if err != nil || lost != "" {
		p.t.Errorf("%v %s", err, lost)
	}
}

// readable checks the page in both themes, in a wide window and one of 400 px.
func (p consoleTab) readable(page string) {
	p.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int{1280, 400} {
			p.size(width, 900, theme)
			var bad []string
			if err := p.evaluate(unreadable, &bad); err != nil {
				p.t.Fatal(err)
			}
			for _, what := range bad {
				p.t.Errorf("%s, %s, %d px: %s", page, theme, width, what)
			}
		}
	}
	p.size(1280, 900, "light")
}

// TestConsole: an operator signs in, looks at every page under load and does everything that
// they offer; another site can do nothing; the page survives a restart of the relay.
func TestConsole(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "chromium", "chromium")
	place := newPlace(t)
	secret := filepath.Join(place.dir, "admin-token")
	if err := os.WriteFile(secret, []byte(adminToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := "127.0.0.1:" + testkit.FreePort(t)
	flags := []string{"--admin", admin, "--admin-token-file", secret, "--udp", "127.0.0.1:" + testkit.FreePort(t), "--advertise",
		"127.0.0.1", "--capture"}
	f := place.serve(flags...)
	load := exec.Command(binary, "bench", "--api", f.api, "--token", token, "--matches", "20", "--rate", "400", "--duration", "10m")
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = load.Process.Kill(); _ = load.Wait() })
	m := f.match()

	browser := startChromium(t)
	p := consoleTab{browser.open("http://"+admin+"/", "document.getElementById('token') !== null")}
	p.readable("sign-in")
	p.screen("sign-in")
	p.enter("token", "not the token of the operator")
	p.press("Sign in")
	p.shows("this is not the token")
	p.enter("token", adminToken)
	p.press("Sign in")

	p.shows("Traffic in")
	p.shows("the limits are 20 ms and 2")
	p.shows("no drops grow")
	p.shows("matches survive a restart")
	p.shows("worker 1")
	p.readable("overview")
	if *consoleScreens { // Plots of some length.
		testkit.Within(t, 2*time.Minute, "forty samples", func() bool {
			var n int
			return p.evaluate("performance.now() / 1000 | 0", &n) == nil && n > 40
		})
	}
	p.screen("overview")
	p.size(400, 900, "dark")
	p.screen("overview-narrow-dark")
	p.size(1280, 900, "light")

	p.title("Overview")

	p.goTo("matches")
	p.shows("game/test")
	p.shows("21 matches")
	p.shows("kbit/s")
	p.readable("matches")
	p.screen("matches")
	p.keepsFocus()
	p.enter("q", "127.0.0.0/8")
	p.shows("21 matches")
	p.enter("q", "203.0.113.7")
	p.shows("0 matches")
	p.enter("q", m.code)
	p.shows("1 match")
	p.reload()
	p.shows("1 match") // The search is in the URL.
	p.press(hex.EncodeToString(m.host.Cred.ID[:4]))

	p.shows("it plays: bound, and linked")
	p.shows("bound\t127.0.0.1:")
	p.readable("match")
	p.screen("match")
	p.press("Capture")
	p.press("Yes, capture")
	p.shows("captured ")
	p.press("Ban") // The player has the name of a static token, and is still there when the bans are shown.
	p.shows("its backend calls for many players; ban one that it names in allocate and join, or a network, or revoke the token")
	p.press("Yes, ban")
	p.press("Cancel")
	p.press("Kick")
	p.press("Yes, kick")
	p.shows("closed by the operator")
	p.shows("Players that have gone")
	p.press("Close")
	p.press("Yes, close")
	p.shows("it ended")

	p.goTo("usage")
	p.shows("game/test")
	p.readable("usage")
	p.screen("usage")
	p.press("game/test")
	p.shows("Player hours")
	p.shows("What happened to its allocations lately")
	p.shows("closed by the operator")
	p.readable("project")
	p.screen("project")

	p.goTo("attack")
	p.shows("Dropped per second")
	for range 3 {
		m.player.Send(m.host.Cred.ID, "after the end")
	}
	p.readable("attack")
	p.screen("attack")

	p.goTo("bans")
	p.shows("No player and no network is banned.")
	p.enter("ban-prefix", "203.0.113.0/24")
	p.enter("ban-reason", "flood")
	p.press("Ban")
	p.shows("The ban of 203.0.113.0/24 ends now: hosts 0, joiners 0, WebSocket connections 0. All players of this network are shut out")
	p.readable("ban")
	p.press("Yes, ban")
	p.shows("1 ban;")
	p.shows("203.0.113.0/24")
	p.readable("bans")
	p.screen("bans")
	p.enter("ban-prefix", "nonsense")
	p.press("Ban")
	p.shows("neither an address nor a prefix")
	p.press("Cancel")
	p.press("Unban")
	p.press("Yes, unban")
	p.shows("No player and no network is banned.")

	testReloadPage(p, place)

	p.goTo("log")
	p.shows("operator: an allocation was kicked")
	p.enter("f", "kicked")
	p.shows("1 of the last")
	p.readable("log")
	p.screen("log")

	p.goTo("audit")
	p.shows("removed player")
	p.shows("done")
	p.readable("audit")
	p.screen("audit")

	p.goTo("fleet")
	p.shows("1 relay,")
	p.shows("No canary reports here.")
	p.readable("fleet")
	p.press("Drain")
	p.shows("20 matches run there")
	p.shows("After 1 hour it stops in any case, and ends the matches that still run.")
	p.readable("drain")
	p.screen("drain")
	p.press("Yes, drain")
	p.shows("at the latest")
	p.shows("draining,")
	p.press("Undrain")
	p.press("Yes, undrain")
	p.shows("✓ ready")

	var foreign []string
	if err := p.evaluate("performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin) && !n.startsWith('data:'))",
		&foreign); err != nil || len(foreign) > 0 {
		t.Errorf("the page loads from other hosts: %v %v", foreign, err)
	}
	testOtherSite(t, browser, f)

	f.Crash()
	p.shows("The server has not answered since")
	p.readable("server gone")
	p.screen("server-gone")
	place.serve(flags...)
	p.shows("live")
	p.goTo("overview")
	p.shows("allocations of the previous run")
	p.press("Sign out")
	p.shows("Token of admin_token_file")
}

// TestConsoleOIDC: in a real browser, a viewer signs in at an issuer of another site, looks, and
// may do nothing.
func TestConsoleOIDC(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "chromium", "chromium")
	issuer := oidctest.New(t)
	issuer.Claims = map[string]any{"email": "vic@example.org", "email_verified": true}
	url := strings.Replace(issuer.URL, "127.0.0.1", "localhost", 1) // another site than the console's
	place := newPlace(t)
	secret := filepath.Join(place.dir, "admin-token")
	if err := os.WriteFile(secret, []byte(adminToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := "127.0.0.1:" + testkit.FreePort(t)
	f := place.serve("--admin", admin, "--admin-token-file", secret, "--admin-oidc-issuer", url, "--admin-oidc-client-id", "ferry",
		"--admin-oidc-viewers", "vic@example.org")
	f.match()
	p := consoleTab{startChromium(t).open("http://"+admin+"/", "document.getElementById('token') !== null")}
	p.readable("sign-in with an issuer")
	p.do(nil, "(() => { document.querySelector('a.button').click() })")
	p.shows("vic@example.org, viewer")
	p.goTo("fleet")
	p.shows("1 relay,")
	var disabled bool
	p.do(&disabled, "(() => [...document.querySelectorAll('button')].filter(b => b.textContent === 'Drain').every(b => b.disabled))")
	if !disabled {
		t.Error("a viewer can press Drain")
	}
	var status int
	if err := p.evaluate("fetch('/drain', {method: 'POST'}).then(r => r.status)", &status); err != nil || status != http.StatusForbidden {
		t.Errorf("POST /drain by a viewer: %d %v", status, err)
	}
	p.press("Sign out")
	p.shows("Token of admin_token_file")
}

// testReloadPage changes a setting by the file, and the log level by the page.
func testReloadPage(p consoleTab, place place) {
	p.goTo("settings")
	p.shows("joiner_datagrams")
	p.enter("f", "admin_token_file")
	p.shows("after a restart")
	p.readable("settings")
	p.enter("f", "")
	place.settle("joiner_datagrams: 4321\nbind_timeout: 33s\n")
	p.press("Reload")
	p.press("Yes, reload")
	p.shows("Changed by the reload")
	p.shows("4321")
	p.shows("Needs a restart")
	p.screen("settings")
	if err := p.evaluate(`(() => { const s = document.querySelector("main select"); s.value = "debug"; s.dispatchEvent(new Event("change", {bubbles: true})) })()`, nil); err != nil {
		p.t.Fatal(err)
	}
	p.shows("PUT /log-level")
}

// testOtherSite: a page of another site in the browser of a signed-in operator neither reads
// nor changes anything.
func testOtherSite(t *testing.T, browser *chromium, f *ferry) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<script>
const admin = %q
async function attack() {
	const seen = []
	for (const [method, path] of [["POST", "/drain"], ["POST", "/reload"], ["GET", "/config"], ["GET", "/console/data/log"], ["POST", "/console/login"]])
		for (const mode of ["cors", "no-cors"])
			try {
				const r = await fetch(admin + path, {method, mode, credentials: "include", body: method === "POST" ? "{}" : undefined})
				if (r.type !== "opaque") seen.push(path + " " + r.status)
			} catch {}
	return seen
}
</script><form id="f" method="post" action="%[1]s/drain" target="frame"></form><iframe name="frame"></iframe><iframe src="%[1]s/console/"></iframe>`, f.admin)
	}))
	t.Cleanup(site.Close)
	// Another name than that of the console makes it another site, not only another origin.
	p := browser.open(strings.Replace(site.URL, "127.0.0.1", "localhost", 1), "typeof attack === 'function'")
	var seen []string
	p.do(&seen, "attack")
	if len(seen) > 0 {
		t.Errorf("another site reads %v", seen)
	}
	if err := p.evaluate("document.getElementById('f').submit()", nil); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the form's answer is in the frame", func() bool {
		var there bool // A document of another site is not to be had.
		return p.evaluate("document.querySelector('iframe').contentDocument === null", &there) == nil && there
	})
	if status, body := f.askAdmin("GET", "/drain"); status != http.StatusOK || strings.Contains(string(body), `"draining":true`) {
		t.Errorf("after an attack by another site: %d %s", status, body)
	}
}
