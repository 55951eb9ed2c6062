package traffic

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ferryrelay/ferry/bench"
)

type flowFile struct {
	Players int           `yaml:"players"`
	Cycle   time.Duration `yaml:"cycle"`
	Flows   []flow        `yaml:"flows"`
}

// flow is a kind of datagrams, between the host and each of its joiners.
type flow struct {
	From     string        `yaml:"from"`
	Rate     rate          `yaml:"rate"`
	Size     sizes         `yaml:"size,omitempty"`
	Burst    []sizes       `yaml:"burst,omitempty,flow"`
	Jitter   time.Duration `yaml:"jitter,omitempty"`
	Together bool          `yaml:"together,omitempty"`
}

const (
	fromHost   = "host"
	fromJoiner = "joiner"
)

const (
	maxCycle     = 10 * time.Minute
	maxDatagrams = 1 << 22 // of a cycle
	maxRate      = 1e5     // bursts/s of one flow
	// rateTolerance is how far the rate of a cycle may be from that of the file.
	rateTolerance = 0.01
)

// lineError is an error at a line of the file, which package yaml collects.
func lineError(n *yaml.Node, format string, args ...any) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: ", n.Line) + fmt.Sprintf(format, args...)}}
}

// plainErrors puts words of the file in place of those of package yaml.
var plainErrors = strings.NewReplacer("cannot unmarshal", "cannot use", " in type traffic.flowFile", "", " in type traffic.flow", "",
	"into traffic.flowFile", "as a file of flows", "into traffic.flow", "as a flow", "into time.Duration", "as a time such as 5ms")

func plainError(err error) error {
	if all := (*yaml.TypeError)(nil); errors.As(err, &all) {
		err = errors.New(strings.Join(all.Errors, "; "))
	}
	return errors.New(plainErrors.Replace(err.Error()))
}

// rate is a number of bursts per second.
type rate float64

func (r *rate) UnmarshalYAML(n *yaml.Node) error {
	text, ok := strings.CutSuffix(n.Value, "/s")
	v, err := strconv.ParseFloat(text, 64)
	if !ok || err != nil || !(v > 0 && v <= maxRate) {
		return lineError(n, "rate %q is not a number per second such as 30/s, above 0/s and up to 100000/s", n.Value)
	}
	*r = rate(v)
	return nil
}

type sizes []sizeShare

type sizeShare struct {
	low, high int
	share     float64 // of 1
}

func (s *sizes) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		low, high, err := parseSize(n)
		*s = sizes{{low, high, 1}}
		return err
	}
	if n.Kind != yaml.MappingNode {
		return lineError(n, "a size is 40B, a range 100-200B, or shares such as {40B: 75%%, 100-200B: 25%%}")
	}
	sum := 0.0
	for i := 0; i < len(n.Content); i += 2 {
		low, high, err := parseSize(n.Content[i])
		if err != nil {
			return err
		}
		text, ok := strings.CutSuffix(n.Content[i+1].Value, "%")
		share, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil || !(share > 0 && share <= 100) {
			return lineError(n.Content[i+1], "share %q is not above 0%% and up to 100%%", n.Content[i+1].Value)
		}
		sum += share
		*s = append(*s, sizeShare{low, high, share / 100})
	}
	if math.Abs(sum-100) > 0.5 {
		return lineError(n, "the shares are %g%% together, not 100%%", sum)
	}
	slices.SortFunc(*s, func(a, b sizeShare) int { return cmp.Compare(a.low, b.low) })
	return nil
}

func parseSize(n *yaml.Node) (low, high int, err error) {
	text, ok := strings.CutSuffix(n.Value, "B")
	from, to, isRange := strings.Cut(text, "-")
	low, err = strconv.Atoi(from)
	if high = low; err == nil && isRange {
		high, err = strconv.Atoi(to)
	}
	switch {
	case !ok || err != nil:
		return 0, 0, lineError(n, "size %q is not a number of bytes such as 40B, or a range such as 100-200B", n.Value)
	case low > high:
		return 0, 0, lineError(n, "size %q ends below its start", n.Value)
	case low < bench.MinTrafficSize:
		return 0, 0, lineError(n, "size %q is below %dB, which each datagram needs for its number and time", n.Value, bench.MinTrafficSize)
	case high > bench.MaxTrafficSize:
		return 0, 0, lineError(n, "size %q is above %dB, the most that a relay forwards", n.Value, bench.MaxTrafficSize)
	}
	return low, high, nil
}

// at returns the size of a quantile, 0 to 1.
func (s sizes) at(q float64) int {
	for _, part := range s[:len(s)-1] {
		if q < part.share {
			return part.at(q / part.share)
		}
		q -= part.share
	}
	last := s[len(s)-1]
	return last.at(q / last.share)
}

func (p sizeShare) at(q float64) int { return min(p.low+int(q*float64(p.high-p.low+1)), p.high) }

// parseFlows returns the traffic of a file of flows; players replaces its number unless it is 0.
func parseFlows(data []byte, players int) (*bench.Traffic, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	f := flowFile{Cycle: 10 * time.Second}
	if err := d.Decode(&f); errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty")
	} else if err != nil {
		return nil, plainError(err)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document")
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, err
	}
	if err := f.check(root.Content[0]); err != nil {
		return nil, plainError(err)
	}
	f.Players = cmp.Or(players, f.Players)
	return f.traffic()
}

func (f *flowFile) check(root *yaml.Node) error {
	players, cycle, flows := value(root, "players"), value(root, "cycle"), value(root, "flows")
	switch {
	case f.Players < 1 || f.Players > 255:
		return lineError(players, "players: %d is not in 1 to 255", f.Players)
	case f.Cycle < time.Second || f.Cycle > maxCycle:
		return lineError(cycle, "cycle: %v is not in 1s to %v", f.Cycle, maxCycle)
	case len(f.Flows) == 0:
		return lineError(flows, "flows: there are none")
	}
	for i := range f.Flows {
		if err := f.Flows[i].check(f.Cycle); err != nil {
			return lineError(flows.Content[i], "flow %d: %v", i+1, err)
		}
	}
	return nil
}

// value returns the value of a key, or the mapping itself without it.
func value(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return n
}

func (l *flow) check(cycle time.Duration) error {
	bursts := float64(l.Rate) * cycle.Seconds()
	switch {
	case l.From != fromHost && l.From != fromJoiner:
		return fmt.Errorf("from: %q is neither host nor joiner", l.From)
	case l.Rate == 0:
		return errors.New("rate is missing")
	case (l.Size == nil) == (l.Burst == nil):
		return errors.New("either size or burst is necessary: the size of each datagram, or those of the datagrams that are due at once")
	case l.Jitter < 0 || l.Jitter > cycle/2:
		return fmt.Errorf("jitter: %v is not in 0s to half of the cycle", l.Jitter)
	case l.Together && l.From != fromHost:
		return errors.New("together is for flows from the host, which sends to all joiners in one tick")
	case math.Abs(bursts-math.Round(bursts)) > rateTolerance*bursts || bursts < 0.5:
		return fmt.Errorf("rate: %v/s is %.4g times in a cycle of %v; choose a cycle of which it is a whole number", l.Rate, bursts, cycle)
	}
	return nil
}

// traffic returns one cycle of all flows. It is the same each time.
func (f *flowFile) traffic() (*bench.Traffic, error) {
	t := &bench.Traffic{Players: f.Players, Cycle: f.Cycle}
	for i := range f.Flows {
		l := &f.Flows[i]
		if l.Size != nil {
			l.Burst = []sizes{l.Size}
		}
		n := int(math.Round(float64(l.Rate) * f.Cycle.Seconds()))
		if len(t.Datagrams)+n*len(l.Burst)*f.Players > maxDatagrams {
			return nil, fmt.Errorf("a cycle has more than %d datagrams; choose a shorter one", maxDatagrams)
		}
		l.add(t, n, rand.New(rand.NewPCG(uint64(i), 0)))
	}
	slices.SortStableFunc(t.Datagrams, func(a, b bench.TrafficDatagram) int { return cmp.Compare(a.At, b.At) })
	return t, nil
}

// add appends n bursts of each joiner. The sizes are the quantiles of the distribution in a
// random order, so that each cycle has exactly its shares.
func (l *flow) add(t *bench.Traffic, n int, random *rand.Rand) {
	groups, members := t.Players, 1 // A group has the same times and sizes.
	if l.Together {
		groups, members = 1, t.Players
	}
	drawn := make([][]int, len(l.Burst))
	for i, s := range l.Burst {
		for k := range n * groups {
			drawn[i] = append(drawn[i], s.at((float64(k)+0.5)/float64(n*groups)))
		}
		random.Shuffle(len(drawn[i]), func(a, b int) { drawn[i][a], drawn[i][b] = drawn[i][b], drawn[i][a] })
	}
	interval := float64(t.Cycle) / float64(n)
	for group := range groups {
		phase := 0.0
		if !l.Together {
			phase = random.Float64() * interval
		}
		for k := range n {
			at := (time.Duration(phase+float64(k)*interval) + time.Duration(random.Float64()*float64(l.Jitter))) % t.Cycle
			for member := range members {
				for i := range drawn {
					t.Datagrams = append(t.Datagrams, bench.TrafficDatagram{
						At: at, Size: uint16(drawn[i][group*n+k]), Player: uint8(group + member), Down: l.From == fromHost,
					})
				}
			}
		}
	}
}
