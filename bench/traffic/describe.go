package traffic

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ferryrelay/ferry/bench"
)

const (
	// burstGap is the time below which datagrams are of one burst, or of one tick of a host.
	burstGap = time.Millisecond
	// maxShares bounds the sizes that a distribution lists; more become ranges of equal shares.
	maxShares = 8
	// minFlow is the share of the datagrams of a role below which they are no flow.
	minFlow = 0.005
)

// describe returns a file of flows with about the rates, bursts and sizes of a capture.
// It leaves out the first and the last tenth, in which a match begins and ends.
func describe(t *bench.Traffic) []byte {
	from, to := t.Cycle/10, t.Cycle-t.Cycle/10
	var flows []flow
	for _, down := range []bool{false, true} {
		players := make([][]bench.TrafficDatagram, t.Players)
		var all []time.Duration
		for _, d := range t.Datagrams {
			if d.Down == down && d.At >= from && d.At < to {
				players[d.Player] = append(players[d.Player], d)
				all = append(all, d.At)
			}
		}
		if len(all) == 0 {
			continue
		}
		together := down && t.Players > 1 && 3*countTicks(all) < 2*len(all)
		flows = append(flows, describeRole(players, down, together, (to-from).Seconds())...)
	}
	cycle := 10 * time.Second
	for _, longer := range []time.Duration{time.Minute, maxCycle} {
		for i := range flows {
			if flows[i].check(cycle) != nil {
				cycle = longer
				break
			}
		}
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(flowFile{t.Players, cycle, flows}), e.Close()); err != nil {
		panic(err) // It writes to memory.
	}
	return b.Bytes()
}

func countTicks(at []time.Duration) int {
	n := 1
	for i := 1; i < len(at); i++ {
		if at[i]-at[i-1] > burstGap {
			n++
		}
	}
	return n
}

// describeRole returns the flows of the host or of the joiners: one of the bursts of the most
// common length, and one of what is left. All of them are one flow unless a length is that of most bursts.
func describeRole(players [][]bench.TrafficDatagram, down, together bool, seconds float64) (flows []flow) {
	bursts, lengths, count := make([][][]bench.TrafficDatagram, len(players)), map[int]int{}, 0
	for player, all := range players {
		start := 0
		for i := range all {
			if i+1 == len(all) || all[i+1].At-all[i].At > burstGap {
				bursts[player] = append(bursts[player], all[start:i+1])
				lengths[i+1-start]++
				count++
				start = i + 1
			}
		}
	}
	length := 1
	for n, of := range lengths {
		if 2*of > count {
			length = n
		}
	}
	var rest []int
	var intervals []time.Duration
	position, same := make([][]int, length), 0
	for _, of := range bursts {
		last := time.Duration(-1)
		for _, b := range of {
			switch {
			case length > 1 && len(b) != length:
				for _, d := range b {
					rest = append(rest, int(d.Size))
				}
				continue
			case last >= 0:
				intervals = append(intervals, b[0].At-last)
			}
			last = b[0].At
			for i, d := range b {
				position[i%length] = append(position[i%length], int(d.Size))
			}
			same += max(1, len(b)/length)
		}
	}
	role := flow{From: fromJoiner, Together: together}
	if down {
		role.From = fromHost
	}
	perSecond := func(n int) rate { return rate(float64(n) / seconds / float64(len(players))) }
	most := role
	most.Rate, most.Jitter = perSecond(same), spread(intervals)
	for _, p := range position {
		most.Burst = append(most.Burst, distribution(p))
	}
	if length == 1 {
		most.Size, most.Burst = most.Burst[0], nil
	}
	if flows = append(flows, most); float64(len(rest)) > minFlow*float64(same*length) {
		role.Rate, role.Size, role.Together = perSecond(len(rest)), distribution(rest), false
		flows = append(flows, role)
	}
	return flows
}

func spread(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	middle := d[len(d)/2]
	for i := range d {
		d[i] = (d[i] - middle).Abs()
	}
	slices.Sort(d)
	return (2 * d[len(d)/2]).Round(100 * time.Microsecond)
}

func distribution(all []int) (s sizes) {
	slices.Sort(all)
	add := func(part []int) {
		s = append(s, sizeShare{part[0], part[len(part)-1], float64(len(part)) / float64(len(all))})
	}
	if distinct := slices.Compact(slices.Clone(all)); len(distinct) <= maxShares {
		for _, size := range distinct {
			first, _ := slices.BinarySearch(all, size)
			end, _ := slices.BinarySearch(all, size+1)
			add(all[first:end])
		}
		return s
	}
	for first := 0; first < len(all); {
		end := min(first+(len(all)+maxShares-1)/maxShares, len(all))
		end, _ = slices.BinarySearch(all, all[end-1]+1) // Equal sizes stay together.
		add(all[first:end])
		first = end
	}
	return s
}

// MarshalYAML implements [yaml.Marshaler].
func (r rate) MarshalYAML() (any, error) {
	return strconv.FormatFloat(float64(r), 'g', 4, 64) + "/s", nil
}

// MarshalYAML implements [yaml.Marshaler].
func (s sizes) MarshalYAML() (any, error) {
	shares := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	for _, p := range s {
		text := fmt.Sprintf("%dB", p.low)
		if p.high != p.low {
			text = fmt.Sprintf("%d-%dB", p.low, p.high)
		}
		if len(s) == 1 {
			return text, nil
		}
		shares.Content = append(shares.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: text},
			&yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprintf("%.4g%%", 100*p.share)})
	}
	return shares, nil
}
