package admin

import (
	"context"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
)

// listTimeline lists the events of a project. A process without a relay adds those of all relays to the calls that
// it refused itself.
func listTimeline(events *timeline.Timeline, fleet relays) func(context.Context, operator.TimelineQuery) (operator.ProjectTimeline, error) {
	return func(ctx context.Context, q operator.TimelineQuery) (answer operator.ProjectTimeline, err error) {
		answer = operator.ProjectTimeline{Project: q.Project, Events: []operator.WhyEvent{}}
		for _, e := range events.OfProject(q.Project, q.Limit) {
			row := e.Row()
			if !e.ID.IsZero() {
				row.ID = e.ID.String()
			}
			answer.Events = append(answer.Events, row)
		}
		if fleet.Fleet != nil {
			_, err = askFleet(ctx, fleet, operator.ListTimeline, q, &answer)
		}
		return answer, err
	}
}
