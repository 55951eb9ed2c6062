package admin

import (
	"fmt"
	"html"
	"net/http"
)

// index lists the pages; the verb is the title.
const index = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>%[1]s</title>
<h1>%[1]s</h1>
<ul>
<li><a href="/metrics">/metrics</a>: counters and gauges, in the text format of Prometheus
<li><a href="/livez">/livez</a>: does the relay answer, and does every worker get on
<li><a href="/readyz">/readyz</a>: does this process want requests
<li><a href="/nodes">/nodes</a>: this process, or all of a fleet; POST and DELETE /nodes/ID/drain as /drain, for any relay of a fleet
<li><a href="/allocations">/allocations</a>: who is there (?role=host&amp;bound=true&amp;match=ID&amp;limit=100&amp;cursor=NEXT); /allocations/ID, /allocations/ID/players; DELETE /allocations/ID closes one, POST /allocations/ID/kick removes a player
<li><a href="/usage">/usage</a>: what each project used; <a href="/stats">/stats</a>: counters as JSON
<li><a href="/config">/config</a>: the settings in force; POST /reload reads them again
<li><a href="/log-level">/log-level</a>: PUT changes it (?level=debug)
<li><a href="/drain">/drain</a>: is it running dry; POST begins that (?deadline=1h&amp;threshold=0), DELETE ends it
</ul>
<p>ferry ctl and ferry top show all of it.
`

func writeIndex(w http.ResponseWriter, title string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'")
	fmt.Fprintf(w, index, html.EscapeString(title))
}
