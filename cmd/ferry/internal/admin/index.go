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
<li><a href="/drain">/drain</a>: is it running dry; POST begins that (?deadline=1h&amp;threshold=0), DELETE ends it
</ul>
`

func writeIndex(w http.ResponseWriter, title string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'")
	fmt.Fprintf(w, index, html.EscapeString(title))
}
