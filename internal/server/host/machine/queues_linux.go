package machine

import "github.com/vishvananda/netlink"

// ReadQueues reads the counters.
func ReadQueues() (q Queues) {
	all, err := netlink.QdiscList(nil)
	if err != nil {
		return Queues{}
	}
	for _, queue := range all {
		a := queue.Attrs()
		if a.Parent != netlink.HANDLE_ROOT || a.Statistics == nil { // The root counts what is below it.
			continue
		}
		if a.Statistics.Basic != nil {
			q.Sent += uint64(a.Statistics.Basic.Packets)
		}
		if a.Statistics.Queue != nil {
			q.Dropped += uint64(a.Statistics.Queue.Drops)
		}
	}
	return q
}
