package kube

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/internal/base/periodic"
)

// CostAnnotation is the annotation of a pod by which Kubernetes chooses the pods that a smaller
// ReplicaSet loses: of those that are ready, the one with the lowest cost.
const CostAnnotation = "controller.kubernetes.io/pod-deletion-cost"

// The default interval between two changes of the annotation, and the interval between two looks
// at the seats.
const (
	defaultEvery = time.Minute
	lookEvery    = 2 * time.Second
)

// DeletionCost keeps [CostAnnotation] of this process's pod at the number of its relay's reserved
// seats. It changes the annotation at most once in Every, and only if the number has changed by a
// tenth or more, or to or from zero: the API server writes each change to its disk and tells all
// watchers of pods.
type DeletionCost struct {
	// Client makes the calls. Required.
	Client *Client
	// Seats returns the number of reserved seats. Required.
	Seats func() int
	// Every is the minimum interval between two changes. Zero: a minute.
	Every time.Duration
	// Logger gets a line when calls begin to fail, and when they work again. Required.
	Logger *slog.Logger

	started   time.Time
	called    time.Time // the last call
	published bool      // cost is in force
	cost      int
	failing   bool
}

// Run keeps the annotation current until ctx ends. It is called once.
func (d *DeletionCost) Run(ctx context.Context) {
	if d.Every == 0 {
		d.Every = defaultEvery
	}
	defer d.Client.Close()
	periodic.Run(ctx, min(lookEvery, d.Every), func() { d.update(ctx, time.Now()) })
}

// update publishes the cost if it is due and differs by much. An empty relay publishes its first
// cost after Every: the annotation is that of the process before it, whose matches may still return.
func (d *DeletionCost) update(ctx context.Context, now time.Time) {
	if d.started.IsZero() {
		d.started = now
	}
	cost := min(d.Seats(), math.MaxInt32)
	tooSoon := !d.called.IsZero() && now.Sub(d.called) < d.Every || !d.published && cost == 0 && now.Sub(d.started) < d.Every
	if tooSoon || d.published && !differsByMuch(d.cost, cost) {
		return
	}
	d.called = now
	err := d.publish(ctx, cost)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		d.published, d.cost = true, cost
	}
	if failing := err != nil; failing != d.failing {
		d.failing = failing
		if failing {
			d.Logger.Warn("the deletion cost of the pod cannot be set: a scale-down may end a relay that is not the emptiest", "error", err)
		} else {
			d.Logger.Info("the deletion cost of the pod is current again", "cost", cost)
		}
	}
}

// differsByMuch reports whether a cost is worth a call.
func differsByMuch(before, now int) bool {
	change := max(before-now, now-before)
	return change > 0 && (before == 0 || now == 0 || change*10 >= before)
}

func (d *DeletionCost) publish(ctx context.Context, cost int) error {
	namespace, err := d.Client.read(namespaceFile)
	if err != nil {
		return err
	}
	pod, err := d.Client.read(podFile)
	if err != nil {
		return err
	}
	path := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(pod)
	return d.Client.call(ctx, http.MethodPatch, path, mergePatch,
		object{Metadata: metadata{Annotations: map[string]string{CostAnnotation: strconv.Itoa(cost)}}}, nil)
}
