package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
)

// timelinePages registers GET /timeline?project=NAME. A process without a relay asks all
// relays, and adds the calls that it refused itself.
func timelinePages(mux *http.ServeMux, events *timeline.Timeline, fleet relays) {
	mux.HandleFunc("GET /timeline", func(w http.ResponseWriter, r *http.Request) {
		project, limit, err := timelineQuery(r.URL.Query())
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		answer := operator.ProjectTimeline{Project: project, Events: []operator.WhyEvent{}}
		for _, e := range events.OfProject(project, limit) {
			row := e.Row()
			if !e.ID.IsZero() {
				row.ID = e.ID.String()
			}
			answer.Events = append(answer.Events, row)
		}
		if fleet.Fleet != nil {
			target := "/timeline?" + url.Values{"project": {project}, "limit": {strconv.Itoa(limit)}}.Encode()
			err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
				answer.Missing, err = askRelays(ctx, fleet, target, func(n operator.Node, part operator.ProjectTimeline) bool {
					for _, e := range part.Events {
						e.Relay = n.ID
						answer.Events = append(answer.Events, e)
					}
					return false
				})
				return err
			})
			slices.SortStableFunc(answer.Events, func(a, b operator.WhyEvent) int { return b.Last.Compare(a.Last) })
			answer.Events = answer.Events[:min(limit, len(answer.Events))]
		}
		writeAnswer(w, answer, err)
	})
}

func timelineQuery(query url.Values) (project string, limit int, err error) {
	limit = operator.DefaultRows
	err = parse(query, map[string]func(string) error{
		"project": func(text string) error { project = text; return nil },
		"limit": func(text string) error {
			n, err := number(text, operator.MaxRows)
			limit = int(n)
			return err
		},
	})
	if err == nil && project == "" {
		err = fmt.Errorf("%w: project is missing", errQuery)
	}
	return project, limit, err
}
